"""Products and convolutions that share an input become one (MAGIS's aggregation; merged Q, K, V).

The weights are joined along their outputs, the result is cut into views. Rounds anew: a wider product may sum
in another order.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from peakfold.graph.rewrite.candidate import named
from peakfold.graph.rewrite.change import Change
from peakfold.graph.rewrite.infer import CannotInfer
from peakfold.graph.rewrite.maker import Maker, first_free
from peakfold.graph.rewrite.move import Move
from peakfold.ir.graph import Arg, Graph, Node, Value

SHARED = {"aten.mm.default": 0, "aten.addmm.default": 1}
"""Which argument the shared one is; the weight follows it."""


def merged_products(graph: Graph) -> Iterator[Move]:
    """Yield, for each matrix that several products read on their left, those products as one."""
    for group in _groups(
        graph, [node for node in graph.nodes if node.op.name in SHARED and not node.kwargs], _product
    ):
        move = _merged(graph, group)
        if move is not None:
            yield move


def merged_convolutions(graph: Graph) -> Iterator[Move]:
    """Yield, for each tensor that several alike convolutions read, those convolutions as one."""
    nodes = [node for node in graph.nodes if node.op.name == "aten.convolution.default"]
    for group in _groups(
        graph, [node for node in nodes if node.args[6] is False and node.args[8] == 1], _window
    ):
        move = _merged_windows(graph, group)
        if move is not None:
            yield move


def _product(graph: Graph, node: Node) -> object:
    return node.op.name, node.args[SHARED[node.op.name]], node.origin.phase


def _window(graph: Graph, node: Node) -> object:
    weight = node.args[1]
    assert isinstance(weight, Value)
    kernel = graph.tensor_type(weight).shape[1:]
    return node.args[0], node.args[2] is None, node.args[3:], kernel, node.origin.phase


def _groups(graph: Graph, nodes: Sequence[Node], key: object) -> Iterator[list[Node]]:
    """Yield nodes that differ in their weights alone; none computes what another one of them reads."""
    assert callable(key)
    found: dict[object, list[Node]] = {}
    for node in nodes:
        found.setdefault(key(graph, node), []).append(node)
    for group in found.values():
        weights = {node.args[_weight_at(node)] for node in group}
        if len(group) > 1 and len(weights) == len(group) and "update" not in {n.origin.phase for n in group}:
            yield group


def _weight_at(node: Node) -> int:
    return SHARED.get(node.op.name, 0) + 1


def _values(nodes: Sequence[Node], at: int) -> tuple[Value, ...]:
    return tuple(arg for node in nodes if isinstance(arg := node.args[at], Value))


def _merged(graph: Graph, group: Sequence[Node]) -> Move | None:
    first, at = group[0], _weight_at(group[0])
    maker = Maker(graph, first, first_free(graph))
    weights = _values(group, at)
    widths = [graph.tensor_type(weight).shape[1] for weight in weights]
    try:
        joined = _joined(maker, graph, weights)
        operands: tuple[Arg, ...] = (first.args[at - 1], joined)
        if first.op.name == "aten.addmm.default":
            biases = _values(group, 0)
            if any(graph.tensor_type(bias).shape != (n,) for bias, n in zip(biases, widths, strict=True)):
                return None
            operands = (maker.call("aten.cat.default", biases, 0), *operands)
        whole = maker.call(first.op.name, *operands)
        return _cut("merged_products", maker, graph, group, whole, widths)
    except CannotInfer:
        return None


def _joined(maker: Maker, graph: Graph, weights: Sequence[Value]) -> Value:
    """Join matrices along their columns; transposed ones as what they are views of."""
    sources = [_transposed_of(graph, weight) for weight in weights]
    if all(source is not None for source in sources):
        rows = tuple(source for source in sources if source is not None)
        return maker.call("aten.t.default", maker.call("aten.cat.default", rows, 0))
    return maker.call("aten.cat.default", tuple(weights), 1)


def _transposed_of(graph: Graph, value: Value) -> Value | None:
    node = graph.node.get(value.node)
    if node is None or node.op.name != "aten.t.default":
        return None
    source = node.args[0]
    return source if isinstance(source, Value) and graph.tensor_type(source).is_contiguous else None


def _merged_windows(graph: Graph, group: Sequence[Node]) -> Move | None:
    first = group[0]
    maker = Maker(graph, first, first_free(graph))
    kernels = _values(group, 1)
    widths = [graph.tensor_type(kernel).shape[0] for kernel in kernels]
    try:
        kernel = maker.call("aten.cat.default", kernels, 0)
        bias = None if first.args[2] is None else maker.call("aten.cat.default", _values(group, 2), 0)
        whole = maker.call(first.op.name, first.args[0], kernel, bias, *first.args[3:])
        return _cut("merged_convolutions", maker, graph, group, whole, widths)
    except CannotInfer:
        return None


def _cut(
    rule: str, maker: Maker, graph: Graph, group: Sequence[Node], whole: Value, widths: Sequence[int]
) -> Move | None:
    if any(node.outputs[0] in graph.results for node in group):
        return None
    starts = accumulate(widths, initial=0)
    parts = [
        maker.call("aten.slice.Tensor", whole, 1, start, start + width)
        for start, width in zip(starts, widths, strict=False)
    ]
    values = {node.outputs[0]: part for node, part in zip(group, parts, strict=True)}
    return Move(rule, graph, Change(named(graph, maker.nodes, values), values), keeps_bits=False)
