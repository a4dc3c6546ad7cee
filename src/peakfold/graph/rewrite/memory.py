"""Rewrites that lower the peak, for searches that trade seconds for bytes. None is made unless asked for.

- `copied_parts`: slices of one storage are copied, so that the whole dies at once and each part with its own
  last reader. Keeps every bit.
- `narrow_indices`: what a max pooling keeps of its places is held in 32 bits instead of 64. Keeps every bit.
- `fused_losses`: the gradient of a negative log likelihood of a log-softmax is made in place of the
  probabilities, without the tensor of zeros between the two. Rounds anew: exp is another kernel's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from peakfold.graph.rewrite.change import Change, Refusal, Rewritten
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.maker import first_free
from peakfold.graph.rewrite.move import Move
from peakfold.ir.graph import Arg, Graph, Node, Op, Symbol, Value
from peakfold.ir.types import TensorType, contiguous_strides, tensor

LAST_INDEX = 2**31
POOL_GRADIENT = "aten.max_pool2d_with_indices_backward.default"


def memory_moves(graph: Graph) -> Iterator[Move]:
    """Yield each rewrite of a graph that may lower its peak."""
    yield from copied_parts(graph)
    yield from narrow_indices(graph)
    yield from fused_losses(graph)


def lowered(
    graph: Graph, peak_of: Callable[[Graph], int] = peak, keep_bits: bool = True
) -> tuple[Rewritten, tuple[str, ...]]:
    """Return the graph after those rewrites that lower its peak, one after the other, and their names.

    Args:
        graph: the graph.
        peak_of: most bytes alive at once of a graph, under whatever plan is made for it.
        keep_bits: leave out what rounds anew.
    """
    done, least = Rewritten(graph), peak_of(graph)
    names: list[str] = []
    tried_before: set[tuple[str, int]] = set()
    while True:
        found = (move for move in memory_moves(done.graph) if move.keeps_bits or not keep_bits)
        move = next((move for move in found if tried_before.isdisjoint(move.at)), None)
        if move is None:
            return done, tuple(names)
        tried_before |= move.at
        tried = move.apply()
        if isinstance(tried, Refusal) or peak_of(tried.graph) >= least:
            continue
        least, done = peak_of(tried.graph), Rewritten(tried.graph, done.ids.then(tried.ids))
        names.append(move.rule)


# --- parts of a whole -----------------------------------------------------------------------------

CUTS = frozenset(("aten.slice.Tensor", "aten.select.int"))
TAKE_COPIES = frozenset(
    (
        "aten.add.Tensor",
        "aten.sub.Tensor",
        "aten.mul.Tensor",
        "aten.replication_pad2d_backward.default",
        "aten.clone.default",
        "aten.copy.default",
        "aten.cat.default",
    )
)
"""Operators that give the same bits for a slice and for a contiguous copy of it."""


def copied_parts(graph: Graph) -> Iterator[Move]:
    """Yield copies of all slices of a storage that is read through slices alone."""
    parts: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        if node.is_view and node.op.name in CUTS:
            parts.setdefault(graph.storage(node.outputs[0]), []).append(node)
    kept = graph.results
    for whole, cuts in parts.items():
        read = [cut for cut in cuts if _readers(graph, cut.outputs[0])]
        if whole.node in graph.input or len(read) < 2 or not _only_read_through(graph, whole, cuts):
            continue
        if any(cut.outputs[0] in kept or not _take_copies(graph, cut) for cut in read):
            continue
        yield Move("copied_parts", graph, _copies(graph, read))


def _readers(graph: Graph, value: Value) -> list[Node]:
    nodes = (graph.node[reader] for reader in graph.users.get(value, ()))
    return [node for node in nodes if not node.is_view]


def _only_read_through(graph: Graph, whole: Value, cuts: Sequence[Node]) -> bool:
    inside = {cut.id for cut in cuts}
    return whole not in graph.results and inside.issuperset(graph.users.get(whole, ()))


def _take_copies(graph: Graph, cut: Node) -> bool:
    made = [kind for reader in _readers(graph, cut.outputs[0]) for kind in reader.types]
    plain = all(isinstance(kind, TensorType) and kind.is_contiguous for kind in made)
    viewed = any(graph.node[reader].is_view for reader in graph.users.get(cut.outputs[0], ()))
    return (
        plain
        and not viewed
        and all(reader.op.name in TAKE_COPIES for reader in _readers(graph, cut.outputs[0]))
    )


def _copies(graph: Graph, cuts: Sequence[Node]) -> Change:
    new: list[Node] = []
    free = first_free(graph)
    for cut in cuts:
        kind = graph.tensor_type(cut.outputs[0])
        plain = replace(kind, strides=contiguous_strides(kind.shape))
        kwargs = (("memory_format", Symbol("memory_format", "contiguous_format")),)
        clone = Op("aten.clone.default")
        new.append(
            Node(free, f"{cut.name}.copy", clone, cut.outputs, kwargs, (plain,), (None,), origin=cut.origin)
        )
        free += 1
    values = {cut.outputs[0]: copy.outputs[0] for cut, copy in zip(cuts, new, strict=True)}
    return Change(tuple(new), values)


# --- indices ---------------------------------------------------------------------------------------


def narrow_indices(graph: Graph) -> Iterator[Move]:
    """Yield, for each max pooling, its indices kept in 32 bits until its gradient reads them."""
    for node in graph.nodes:
        if node.op.name != "aten.max_pool2d_with_indices.default":
            continue
        kind = node.types[1]
        users = graph.users.get(node.outputs[1], ())
        if (
            isinstance(kind, TensorType)
            and kind.dtype == "int64"
            and kind.numel < LAST_INDEX
            and len(users) == 1
            and graph.node[users[0]].op.name == POOL_GRADIENT
        ):
            yield Move("narrow_indices", graph, _narrowed(graph, node, graph.node[users[0]]))


def _narrowed(graph: Graph, pool: Node, reader: Node) -> Change:
    free, kind = first_free(graph), pool.types[1]
    assert isinstance(kind, TensorType)
    small = _cast(free, f"{pool.name}.narrow", pool.outputs[1], replace(kind, dtype="int32"), pool)
    wide = _cast(free + 1, f"{reader.name}.wide", small.outputs[0], kind, reader)
    args = tuple(wide.outputs[0] if arg == pool.outputs[1] else arg for arg in reader.args)
    return Change(
        (), {}, (replace(reader, args=args),), before={reader.id: (wide,)}, after={pool.id: (small,)}
    )


def _cast(ident: int, name: str, value: Value, kind: TensorType, beside: Node) -> Node:
    kwargs = (("dtype", Symbol("dtype", kind.dtype)),)
    return Node(
        ident, name, Op("aten._to_copy.default"), (value,), kwargs, (kind,), (None,), origin=beside.origin
    )


# --- losses ----------------------------------------------------------------------------------------


def fused_losses(graph: Graph) -> Iterator[Move]:
    """Yield, for each loss of labels, its gradient by the logits without the tensor of zeros in between.

    With log probabilities p and the gradient c of the loss by the label's: ``c - exp(p) c`` at the label,
    ``-exp(p) c`` elsewhere. c comes from the loss's own gradient, asked for one class a row.
    """
    for node in graph.nodes:
        loss = _loss_gradient(graph, node)
        if loss is not None:
            yield Move("fused_losses", graph, _fused(graph, node, loss), keeps_bits=False)


def _loss_gradient(graph: Graph, node: Node) -> Node | None:
    """Return the gradient of the loss that the gradient of a log-softmax reads, where both can be one."""
    if node.op.name != "aten._log_softmax_backward_data.default" or node.args[2] not in (1, -1):
        return None
    grad, logs = node.args[:2]
    assert isinstance(grad, Value)
    loss = graph.node.get(grad.node)
    if loss is None or loss.op.name != "aten.nll_loss_backward.default" or loss.args[1] != logs:
        return None
    rows, classes = graph.tensor_type(grad).shape if len(graph.tensor_type(grad).shape) == 2 else (0, 0)
    alone = graph.users.get(grad, ()) == (node.id,) and grad not in graph.results
    same = node.types[0] == graph.tensor_type(grad) and loss.args[3] is None and loss.args[4] != 0
    return loss if alone and same and rows and classes > 1 else None


def _fused(graph: Graph, node: Node, loss: Node) -> Change:
    total, logs, target, _, reduction, ignored, weight = loss.args
    kind = graph.tensor_type(node.outputs[0])
    rows = kind.shape[0]
    labels = graph.tensor_type(target) if isinstance(target, Value) else None
    assert labels is not None
    made: list[Node] = []

    def call(op: str, args: tuple[Arg, ...], out: TensorType, alias: Value | None = None) -> Value:
        ident = first_free(graph) + len(made)
        name = f"{node.name}.{len(made)}.{op.split('.')[0].strip('_')}"
        made.append(Node(ident, name, Op(f"aten.{op}"), args, (), (out,), (alias,), origin=node.origin))
        return Value(ident)

    flags = tensor(rows, dtype="bool", device=kind.device)
    column = tensor(rows, 1, dtype=kind.dtype, device=kind.device)
    assert isinstance(logs, Value)
    first = replace(graph.tensor_type(logs), shape=(rows, 1))
    counted = call("ne.Scalar", (target, ignored), flags)
    index = call("mul.Tensor", (target, counted), labels)
    zero = call("sub.Tensor", (target, index), labels)
    one = call("slice.Tensor", (logs, 1, 0, 1), first, logs)
    share = call("nll_loss_backward.default", (total, one, zero, None, reduction, ignored, weight), column)
    minus = call("neg.default", (share,), column)
    powers = call("exp.default", (logs,), kind)
    scaled = call("mul.Tensor", (powers, minus), kind)
    at = call("unsqueeze.default", (index, 1), replace(labels, shape=(rows, 1), strides=(1, 1)), index)
    out = call("scatter_add.default", (scaled, 1, at, share), kind)
    return Change(tuple(made), {node.outputs[0]: out})
