"""Dimension links: which dimensions of operands and outputs run over the same axis [MAGIS, section 4.1]."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache

from peakfold.ir.graph import Arg, Graph, Node, Value
from peakfold.ir.types import Type
from peakfold.ops.links.model import Axis, Call, Combine, Factor, Halo, Links, Slot, call_of, whole
from peakfold.ops.links.table import NO_LINKS, rule_of

__all__ = [
    "Axis",
    "Call",
    "Combine",
    "Factor",
    "Halo",
    "Links",
    "Slot",
    "call_of",
    "has_rule",
    "links_of",
    "signature_of",
    "whole",
    "without_rule",
]


KINDS = 8192
"""Calls of which the links are kept."""


@dataclass(frozen=True, slots=True)
class _Kind:
    signature: Hashable
    call: Call = field(compare=False)


def links_of(graph: Graph, node: Node) -> Links:
    """Return along which axes a node can be done in parts; none for a barrier.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Value
        >>> from peakfold.ir.types import tensor
        >>> inputs = (Input(0, "a", "batch", tensor(4, 3)), Input(1, "b", "batch", tensor(3, 2)))
        >>> mm = Node(2, "mm", Op("aten.mm.default"), (Value(0), Value(1)), (), (tensor(4, 2),), (None,))
        >>> for axis in links_of(Graph(inputs, (mm,), ()), mm).axes:
        ...     print([s.factor.length for s in axis.operands], len(axis.outputs), axis.combine)
        [4] 1 sum
        [3, 3] 0 sum
        [2] 1 sum
    """
    if rule_of(node.op.name) is None:
        return NO_LINKS
    types = tuple(graph.type(value) for value in node.inputs)
    return _links_of(_Kind(_signature(node, types), call_of(node, types)))


@lru_cache(KINDS)
def _links_of(kind: _Kind) -> Links:
    rule = rule_of(kind.call.node.op.name)
    found = None if rule is None else rule(kind.call)
    return NO_LINKS if found is None else found


def signature_of(graph: Graph, node: Node) -> Hashable:
    """Return what is the same for all nodes that run one operator on the same types with the same numbers.

    Example:
        >>> from peakfold.ir.graph import Input, Op
        >>> from peakfold.ir.types import tensor
        >>> t, relu = tensor(4), Op("aten.relu.default")
        >>> nodes = tuple(Node(i, f"n{i}", relu, (Value(i - 1),), (), (t,), (None,)) for i in (1, 2))
        >>> graph = Graph((Input(0, "x", "batch", t),), nodes, ())
        >>> signature_of(graph, nodes[0]) == signature_of(graph, nodes[1])
        True
    """
    return _signature(node, tuple(graph.type(value) for value in node.inputs))


def _signature(node: Node, types: tuple[Type, ...]) -> Hashable:
    number = {value: at for at, value in enumerate(dict.fromkeys(node.inputs))}
    args = tuple(_numbered(arg, number) for arg in node.args)
    kwargs = tuple((key, _numbered(arg, number)) for key, arg in node.kwargs)
    return node.op, args, kwargs, types, node.types


def _numbered(arg: Arg, number: dict[Value, int]) -> Hashable:
    """Return an argument in which Values are numbers, and numbers say what they are: 1 is not 1.0 or True."""
    if isinstance(arg, Value):
        return Value, number[arg]
    if isinstance(arg, tuple):
        return tuple(_numbered(item, number) for item in arg)
    return type(arg), arg


def has_rule(name: str) -> bool:
    """Return whether an operator has a rule, by its qualified name."""
    return rule_of(name) is not None


def without_rule(graph: Graph) -> tuple[str, ...]:
    """Return the operators of a graph on tensors that have no rule, sorted."""
    return tuple(sorted({n.op.name for n in graph.nodes if not n.is_host and not has_rule(n.op.name)}))
