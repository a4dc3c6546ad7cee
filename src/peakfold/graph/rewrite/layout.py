"""Which tensors of images lie with their channels last, for inference: the cheapest choice, exactly.

Each operator on images costs so much in either layout, by measurement, and so does each transposition of what
one makes in one layout and another reads in the other. A least cut of the network of both prices is the best
choice of all, with no more transpositions than pay. Rounds anew: other kernels sum in another order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from peakfold.graph.rewrite.candidate import Price
from peakfold.graph.rewrite.change import Change
from peakfold.graph.rewrite.maker import first_free
from peakfold.graph.rewrite.mincut import Network
from peakfold.graph.rewrite.move import Move, Retype
from peakfold.graph.rewrite.templates.norms import NORMS
from peakfold.ir.graph import Arg, Graph, Input, Node, Op, Symbol, Value, substitute
from peakfold.ir.types import TensorType, contiguous_strides

CONVOLUTION = "aten.convolution.default"
POINTWISE = frozenset(
    (*(f"aten.{name}.default" for name in ("relu", "leaky_relu", "hardtanh", "silu", "sigmoid", "gelu")),
     *(f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div")),
     *(f"aten.{name}.default" for name in ("elu", "clamp", "cat")))
)  # fmt: skip
OTHERS = NORMS | frozenset(
    f"aten.{name}.default"
    for name in ("max_pool2d_with_indices", "avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d")
)
FLEXIBLE = POINTWISE | OTHERS | {CONVOLUTION}
"""Operators that take images in either layout and give them in the same."""

_FIRST, _LAST, _NEVER = "first", "last", 1e9


def channels_last(kind: TensorType) -> TensorType:
    """Return the type of the same images with channels last.

    Example:
        >>> from peakfold.ir.types import tensor
        >>> channels_last(tensor(2, 3, 4, 5)).strides
        (60, 1, 15, 3)
    """
    _, c, h, w = kind.shape
    return replace(kind, strides=(h * w * c, 1, w * c, c))


def laid_out(graph: Graph, price: Price, retype: Retype) -> Iterator[Move]:
    """Yield the best choice of layouts, where it is not that all stay as they are.

    Args:
        graph: of an inference; a program with new state, or with gradients, is left as it is.
        price: seconds of the nodes of a graph.
        retype: gives the types of nodes.
    """
    if graph.state or any(node.origin.phase != "forward" for node in graph.nodes):
        return
    nodes = [node for node in graph.nodes if _is_flexible(graph, node)]
    if not any(node.op.name == CONVOLUTION for node in nodes):
        return
    costs = _costs(graph, nodes, price, retype)
    moved = _chosen(graph, costs)
    if moved:
        yield Move("channels_last", graph, _change(graph, moved), keeps_bits=False)


def _images(graph: Graph, node: Node) -> tuple[Value, ...]:
    """Return the operands of a node that are images of its kind: those whose layout is its layout."""
    if node.op.name == CONVOLUTION or node.op.name in OTHERS:
        return tuple(arg for arg in node.args[:1] if isinstance(arg, Value))
    made = node.types[0]
    assert isinstance(made, TensorType)
    is_joined = node.op.name == "aten.cat.default"
    return tuple(
        value
        for value in dict.fromkeys(node.inputs)
        if isinstance(kind := graph.type(value), TensorType)
        and len(kind.shape) == 4
        and (is_joined or kind.shape == made.shape)
    )


def _is_flexible(graph: Graph, node: Node) -> bool:
    made = node.types[0] if node.types else None
    if node.op.name not in FLEXIBLE or not isinstance(made, TensorType) or len(made.shape) != 4:
        return False
    if any(graph.users.get(value) or value in graph.results for value in node.outputs[1:]):
        return False
    if node.outputs[0] in graph.results or (node.op.name in NORMS and node.args[5:6] == (True,)):
        return False
    kinds = [graph.tensor_type(value) for value in _images(graph, node)]
    return bool(kinds) and all(kind.is_contiguous for kind in (*kinds, made))


@dataclass(frozen=True)
class _Costs:
    """Seconds of each node with channels first and last, and of turning each value either way."""

    first: Mapping[int, float]
    last: Mapping[int, float]
    to_last: Mapping[Value, float]
    to_first: Mapping[Value, float]


def _clone(value: Value, ident: int, name: str, kind: TensorType, to: str, beside: Node) -> Node:
    kwargs = (("memory_format", Symbol("memory_format", to)),)
    return Node(
        ident, name, Op("aten.clone.default"), (value,), kwargs, (kind,), (None,), origin=beside.origin
    )


_TO_LAST, _TO_FIRST = "channels_last", "contiguous_format"


def _costs(graph: Graph, nodes: Sequence[Node], price: Price, retype: Retype) -> _Costs:
    """Price all nodes in both layouts, and all transpositions, as one graph."""
    ids = count(first_free(graph))
    inputs: dict[tuple[Value, bool], Input] = {}
    parts: list[Node] = []

    def given(value: Value, last: bool) -> Value:
        if (value, last) not in inputs:
            kind = graph.tensor_type(value)
            ident = next(ids)
            kind = channels_last(kind) if last else kind
            inputs[value, last] = Input(ident, f"given{ident}", "batch", kind)
        return Value(inputs[value, last].id)

    def part(node: Node, last: bool) -> int:
        images = {*_images(graph, node), *_kernel(node)} if last else set()
        new = {
            value: given(value, value in images)
            for value in node.inputs
            if isinstance(graph.type(value), TensorType)
        }
        parts.append(_reading(node, new, next(ids)))
        return parts[-1].id

    def turn(value: Value, last: bool) -> int:
        kind = graph.tensor_type(value)
        made, to = (channels_last(kind), _TO_LAST) if last else (kind, _TO_FIRST)
        parts.append(_clone(given(value, not last), next(ids), f"turn{len(parts)}", made, to, nodes[0]))
        return parts[-1].id

    first = {node.id: part(node, False) for node in nodes}
    last = {node.id: part(node, True) for node in nodes}
    kernels = {node.id: [turn(value, True) for value in _kernel(node)] for node in nodes}
    values = dict.fromkeys(value for node in nodes for value in (*_images(graph, node), node.outputs[0]))
    to_last = {value: turn(value, True) for value in values}
    to_first = {value: turn(value, False) for value in values}
    kept = [one for one in parts if _takes(graph, one, inputs, retype, one.id in last.values())]
    known = {node.id for node in kept}
    found = price(Graph(tuple(inputs.values()), tuple(_typed(one, inputs, retype) for one in kept), ()))
    seconds = {ident: found.get(ident, 0.0) if ident in known else _NEVER for ident in (p.id for p in parts)}
    return _Costs(
        {ident: seconds[at] for ident, at in first.items()},
        {ident: seconds[at] + sum(seconds[k] for k in kernels[ident]) for ident, at in last.items()},
        {value: seconds[at] for value, at in to_last.items()},
        {value: seconds[at] for value, at in to_first.items()},
    )


def _kernel(node: Node) -> tuple[Value, ...]:
    return (
        tuple(arg for arg in node.args[1:2] if isinstance(arg, Value)) if node.op.name == CONVOLUTION else ()
    )


def _reading(node: Node, new: Mapping[Value, Value], ident: int) -> Node:
    args = tuple(substitute(arg, new) for arg in node.args)
    return replace(node, id=ident, name=f"{node.name}.{ident}", args=args, aliases=(None,) * len(node.types))


def _typed(node: Node, inputs: Mapping[tuple[Value, bool], Input], retype: Retype) -> Node:
    found = retype(Graph(tuple(inputs.values()), (node,), ()), frozenset((node.id,)))
    return node if found is None else found.nodes[0]


def _takes(
    graph: Graph, node: Node, inputs: Mapping[tuple[Value, bool], Input], retype: Retype, last: bool
) -> bool:
    """Whether an operator takes its operands, and keeps the layout of those with channels last."""
    found = retype(Graph(tuple(inputs.values()), (node,), ()), frozenset((node.id,)))
    if found is None:
        return False
    made = found.nodes[0].types[0]
    return not last or (isinstance(made, TensorType) and made == channels_last(made))


def _chosen(graph: Graph, costs: _Costs) -> frozenset[int]:
    """Return the ids of the nodes that have channels last in the cheapest choice."""
    network = Network()
    for ident, first in costs.first.items():
        network.add(ident, _LAST, first)
        network.add(_FIRST, ident, costs.last[ident])
    for value in costs.to_last:
        readers = [graph.node[reader] for reader in graph.users.get(value, ())]
        alike = [r.id for r in readers if r.id in costs.first and value in _images(graph, r)]
        maker: object = value.node if value.node in costs.first else _FIRST
        turned, back = ("last", value), ("first", value)
        network.add(maker, turned, costs.to_last[value])
        for reader in alike:
            network.add(turned, reader, _NEVER)
        if maker == _FIRST:
            continue
        network.add(back, maker, costs.to_first[value])
        for reader in alike:
            network.add(reader, back, _NEVER)
        if len(alike) < len(readers):
            network.add(_FIRST, back, _NEVER)
    stay = network.side(_FIRST, _LAST)
    return frozenset(ident for ident in costs.first if ident not in stay)


def _change(graph: Graph, moved: frozenset[int]) -> Change:
    """Transpose what is read in the other layout than it is made in, once, before its first such reader."""
    ids = count(first_free(graph))
    turned: dict[tuple[Value, str], Value] = {}
    before: dict[int, list[Node]] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        wanted = (*_images(graph, node), *_kernel(node)) if node.id in moved else ()
        new: dict[Value, Value] = {}
        for value in dict.fromkeys(node.inputs):
            to = _TO_LAST if value in wanted else _TO_FIRST
            if (value.node in moved) == (to == _TO_LAST) or not isinstance(graph.type(value), TensorType):
                continue
            if (value, to) not in turned:
                kind = graph.tensor_type(value)
                kind = (
                    channels_last(kind)
                    if to == _TO_LAST
                    else replace(kind, strides=contiguous_strides(kind.shape))
                )
                name = f"{graph.name_of(value)}.{to}"
                clone = _clone(value, next(ids), name, kind, to, node)
                before.setdefault(node.id, []).append(clone)
                turned[value, to] = clone.outputs[0]
            new[value] = turned[value, to]
        if new:
            args: tuple[Arg, ...] = tuple(substitute(arg, new) for arg in node.args)
            aliases = tuple(None if alias is None else new.get(alias, alias) for alias in node.aliases)
            nodes.append(replace(node, args=args, aliases=aliases))
    return Change((), {}, tuple(nodes), before={ident: tuple(made) for ident, made in before.items()})
