"""Dimension links: which dimensions of operands and outputs run over the same axis [MAGIS, section 4.1]."""

from peakfold.ir.graph import Graph, Node
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
    "whole",
    "without_rule",
]


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
    rule = rule_of(node.op.name)
    if rule is None:
        return NO_LINKS
    found = rule(call_of(node, tuple(graph.type(value) for value in node.inputs)))
    return NO_LINKS if found is None else found


def has_rule(name: str) -> bool:
    """Return whether an operator has a rule, by its qualified name."""
    return rule_of(name) is not None


def without_rule(graph: Graph) -> tuple[str, ...]:
    """Return the operators of a graph on tensors that have no rule, sorted."""
    return tuple(sorted({n.op.name for n in graph.nodes if not n.is_host and not has_rule(n.op.name)}))
