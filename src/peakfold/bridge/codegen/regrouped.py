"""Views of views: what regroups dimensions and regroups them back is left out where it is read."""

from collections.abc import Container
from dataclasses import replace

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.types import contiguous_strides

REGROUPING = frozenset({"aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"})
"""Views that have the elements of their operand in the same order, in another shape."""


def same(graph: Graph, value: Value, named: Container[Value]) -> Value:
    """Return the value furthest beneath views that only regroup, of the same elements in the same type.

    In a part the types are those of the largest one. Those of a smaller one are equal too: a regrouping cuts
    no dimension that is split, so that it stands at the same place of two shapes that are equal.

    Args:
        graph: the program.
        value: what is read.
        named: values that are read by a name: what is beneath them need not live.

    Example:
        >>> from peakfold.ir.graph import Input, Op
        >>> from peakfold.ir.types import tensor
        >>> x, view = Input(0, "x", "batch", tensor(3, 4)), Op("aten.view.default")
        >>> flat = Node(1, "flat", view, (Value(0), (12,)), (), (tensor(12),), (Value(0),))
        >>> back = Node(2, "back", view, (Value(1), (3, 4)), (), (tensor(3, 4),), (Value(0),))
        >>> same(Graph((x,), (flat, back), ()), Value(2), {Value(0)})
        Value(node=0, index=0)
    """
    found = at = value
    while at not in named and (operand := _regrouped(graph.node.get(at.node))) is not None:
        at = operand
        if graph.type(at) == graph.type(value):
            found = at
    return found


def beneath(graph: Graph, node: Node, named: Container[Value]) -> Node:
    """Return a view that regroups, of the value furthest beneath others that do and that is dense.

    Of a dense tensor each regrouping is a view. Other nodes are returned as they are.

    Args:
        graph: the program.
        node: one of its nodes.
        named: values that are read by a name.
    """
    at = _regrouped(node)
    if at is None:
        return node
    found = at
    while at not in named and (operand := _regrouped(graph.node.get(at.node))) is not None:
        at = operand
        kind = graph.tensor_type(at)
        if kind.strides == contiguous_strides(kind.shape):
            found = at
    return replace(node, args=(found, *node.args[1:]))


def _regrouped(node: Node | None) -> Value | None:
    """What a view that only regroups is of; None for other nodes."""
    if node is None or not node.is_view or node.op.name not in REGROUPING:
        return None
    operand = node.args[0]
    return operand if isinstance(operand, Value) else None
