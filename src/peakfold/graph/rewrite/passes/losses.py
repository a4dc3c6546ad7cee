"""The gradient of a loss of labels, written over the log-probabilities some rows at a time.

Autograd makes a tensor of zeros with one number a row, as large as the log-probabilities, and from both the
gradient by the logits. Each row of that reads its own row alone: with a few rows at a time, by the same two
operators, the tensor of zeros is small, and each part is written where its log-probabilities lay.
"""

from peakfold.graph.rewrite.change import Change
from peakfold.graph.rewrite.maker import first_free
from peakfold.ir.graph import Arg, Graph, Node, Op, Value
from peakfold.ir.types import TensorType, tensor

GRADIENT, LOSS = "aten._log_softmax_backward_data.default", "aten.nll_loss_backward.default"
PARTS = 8
"""Parts that the rows are taken in; the same for every batch and precision, so that plans carry over."""
_EXACT = frozenset(("float32", "float64"))
_MEAN_OR_SUM = (1, 2)


def in_rows(graph: Graph, node: Node) -> Change | None:
    """Return the change that makes a gradient by logits in parts; None where there is no such loss.

    Args:
        graph: the program.
        node: of it.
    """
    loss = _loss_of(graph, node)
    return None if loss is None else _parted(graph, node, loss)


def spared_bytes(graph: Graph) -> int:
    """Return the bytes that such a loss's tensor of zeros, the largest, has beyond one of its parts."""
    kinds = [node.types[0] for node in graph.nodes if _loss_of(graph, node) is not None]
    sizes = (kind.nbytes for kind in kinds if isinstance(kind, TensorType))
    return max(sizes, default=0) * (PARTS - 1) // PARTS


def _loss_of(graph: Graph, node: Node) -> Node | None:
    """The gradient of the loss that a gradient by logits reads, where both can be made row by row."""
    if node.op.name != GRADIENT or node.args[2] not in (1, -1):
        return None
    grad, logs = node.args[:2]
    assert isinstance(grad, Value)
    assert isinstance(logs, Value)
    loss = graph.node.get(grad.node)
    if loss is None or loss.op.name != LOSS or loss.args[1] != logs or loss.args[4] not in _MEAN_OR_SUM:
        return None
    kind = node.types[0]
    assert isinstance(kind, TensorType)
    alike = kind == graph.tensor_type(logs) == graph.tensor_type(grad)
    plain = kind.is_contiguous and kind.dtype in _EXACT and kind.device == "cpu"
    rows = kind.shape[0] if len(kind.shape) == 2 else 0
    alone = graph.users.get(grad, ()) == (node.id,) and grad not in graph.results
    return loss if alike and plain and alone and rows >= PARTS and _is_last(graph, node, logs) else None


def _is_last(graph: Graph, node: Node, logs: Value) -> bool:
    """Whether nothing needs the log-probabilities after a node."""
    if logs != graph.storage(logs) or logs.node in graph.input:
        return False
    if any(graph.storage(value) == logs for value in graph.results):
        return False
    later = graph.nodes[graph.nodes.index(node) + 1 :]
    return not any(graph.storage(value) == logs for one in later for value in one.inputs)


def _parted(graph: Graph, node: Node, loss: Node) -> Change:
    by_loss, logs, target, weight, reduction, ignored, total = loss.args
    dim, dtype = node.args[2:]
    assert isinstance(logs, Value)
    assert isinstance(target, Value)
    kind, labels = graph.tensor_type(logs), graph.tensor_type(target)
    rows, classes = kind.shape
    made: list[Node] = []

    def call(op: str, args: tuple[Arg, ...], out: TensorType, alias: Value | None = None) -> Value:
        ident = first_free(graph) + len(made)
        name = f"{node.name}.{len(made)}.{op.split('.')[1].strip('_')}"
        made.append(Node(ident, name, Op(op), args, (), (out,), (alias,), origin=node.origin))
        return Value(ident)

    whole = logs
    for part in range(PARTS):
        begin, end = part * rows // PARTS, (part + 1) * rows // PARTS
        some = tensor(end - begin, classes, dtype=kind.dtype, device=kind.device)
        theirs = tensor(end - begin, dtype=labels.dtype, device=labels.device, strides=labels.strides)
        lines = call("aten.slice.Tensor", (whole, 0, begin, end), some, whole)
        their = call("aten.slice.Tensor", (target, 0, begin, end), theirs, target)
        zeros = call(LOSS, (by_loss, lines, their, weight, reduction, ignored, total), some)
        grad = call(GRADIENT, (zeros, lines, dim, dtype), some)
        whole = call("aten.slice_scatter.default", (whole, grad, 0, begin, end), kind)
    return Change(tuple(made), {node.outputs[0]: whole})
