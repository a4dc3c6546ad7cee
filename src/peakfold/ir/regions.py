"""What a region may be of: facts of a graph, whatever the axis."""

from peakfold.ir.graph import Graph, Node
from peakfold.ir.types import TensorType


def why_not_inside(node: Node) -> str:
    """Return why no region may have runs of a node; empty where one may.

    Example:
        >>> from peakfold.ir.graph import Op, Value
        >>> from peakfold.ir.types import tensor
        >>> drop = Op("aten.native_dropout.default", random=True)
        >>> why_not_inside(Node(1, "drop", drop, (Value(0), 0.5, True), (), (tensor(2),), (None,)))
        'it draws random numbers: they are drawn whole, before the region'
    """
    if node.is_view:
        return "it is a view: it takes part where the nodes around it do"
    if node.is_host or not all(isinstance(kind, TensorType) for kind in node.types):
        return "it makes a number on the host"
    if node.op.random:
        return "it draws random numbers: they are drawn whole, before the region"
    if not node.op.pure:
        return f"{node.op.name} does more than compute its result"
    if any(alias is not None for alias in node.aliases):
        return "one of its outputs shares the storage of an input"
    return ""


def candidates(graph: Graph) -> tuple[int, ...]:
    """Return the ids of the nodes that a region may have runs of, in program order."""
    return tuple(node.id for node in graph.nodes if not why_not_inside(node))
