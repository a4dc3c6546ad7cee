"""Convolution and batch normalization folded into one convolution, for inference.

With running mean m and variance v, scale s = gamma / sqrt(v + eps): the kernel is multiplied by s, the bias
becomes beta + (bias - m) s. Both are computed in every call, from the weights as they are then: they are
small, and a program that is kept cannot go stale. Rounds anew.
"""

from collections.abc import Iterator

from peakfold.graph.rewrite.candidate import named
from peakfold.graph.rewrite.change import Change
from peakfold.graph.rewrite.infer import CannotInfer
from peakfold.graph.rewrite.maker import Maker, first_free
from peakfold.graph.rewrite.move import Move
from peakfold.ir.graph import Graph, Node, Value

NORMS = frozenset(
    ("aten.native_batch_norm.default", "aten._native_batch_norm_legit.default",
     "aten._native_batch_norm_legit_no_training.default", "aten._native_batch_norm_legit_functional.default")
)  # fmt: skip


def folded_norms(graph: Graph) -> Iterator[Move]:
    """Yield, for each normalization by kept statistics that alone reads a convolution, both as one."""
    for node in graph.nodes:
        if node.op.name not in NORMS or not _is_alone(graph, node):
            continue
        given = node.args[0]
        source = graph.node.get(given.node) if isinstance(given, Value) else None
        if source is None or source.op.name != "aten.convolution.default" or source.args[6] is not False:
            continue
        if graph.users.get(source.outputs[0]) != (node.id,) or source.outputs[0] in graph.results:
            continue
        move = _folded(graph, node, source)
        if move is not None:
            yield move


def _is_alone(graph: Graph, node: Node) -> bool:
    """Whether a normalization uses kept statistics, and only its first output is read."""
    training = False if node.op.name.endswith("no_training.default") else node.args[5]
    rest = [value for value in node.outputs[1:] if graph.users.get(value) or value in graph.results]
    kept = all(isinstance(node.args[i], Value) for i in (3, 4))
    return training is False and kept and not rest


def _folded(graph: Graph, node: Node, source: Node) -> Move | None:
    _, gamma, beta, mean, variance = node.args[:5]
    given, kernel, bias = source.args[:3]
    eps = node.args[-1]
    if not isinstance(kernel, Value) or not isinstance(variance, Value):
        return None
    outputs, *rest = graph.tensor_type(kernel).shape
    maker = Maker(graph, node, first_free(graph))
    try:
        scale = maker.call("aten.rsqrt.default", maker.call("aten.add.Scalar", variance, eps))
        if gamma is not None:
            scale = maker.call("aten.mul.Tensor", scale, gamma)
        column = maker.call("aten.view.default", scale, (outputs, *(1 for _ in rest)))
        shifted = (
            maker.call("aten.neg.default", mean)
            if bias is None
            else maker.call("aten.sub.Tensor", bias, mean)
        )
        moved = maker.call("aten.mul.Tensor", shifted, scale)
        if beta is not None:
            moved = maker.call("aten.add.Tensor", moved, beta)
        folded = maker.call("aten.mul.Tensor", kernel, column)
        out = maker.call(source.op.name, given, folded, moved, *source.args[3:])
    except CannotInfer:
        return None
    values = {node.outputs[0]: out}
    return Move("folded_norms", graph, Change(named(graph, maker.nodes, values), values), keeps_bits=False)
