"""What an order of first runs must keep: makers before readers, random operators as the program draws."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.recompute import makers


@dataclass(frozen=True, slots=True)
class Broken:
    """Two steps that an order has the wrong way round.

    Attributes:
        node: stands too early.
        other: must stand before it, and stands after it.
        why: in words that go behind the name of ``other``.
    """

    node: Node
    other: Node
    why: str


def first_broken(graph: Graph, order: Sequence[int]) -> Broken | None:
    """Return the first pair of an order of all steps that must be the other way round, or None.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> exp = Node(1, "exp", Op("aten.exp.default"), (Value(0),), (), (tensor(2),), (None,))
        >>> neg = Node(2, "neg", Op("aten.neg.default"), (Value(1),), (), (tensor(2),), (None,))
        >>> graph = Graph((Input(0, "x", "batch", tensor(2)),), (exp, neg), (Output("y", Value(2)),))
        >>> broken = first_broken(graph, (2, 1))
        >>> f"{broken.node.name} before {broken.other.name}, {broken.why}"
        'neg before exp, which it reads'
        >>> first_broken(graph, (1, 2)) is None
        True
    """
    place = {ident: at for at, ident in enumerate(order)}
    steps = sorted((graph.node[ident] for ident in order), key=lambda node: place[node.id])
    for node in steps:
        maker = next((ident for ident in makers(graph, node) if place[ident] > place[node.id]), None)
        if maker is not None:
            return Broken(node, graph.node[maker], _read(graph, node, maker))
    drawn = [node for node in graph.nodes if node.op.random]
    for before, after in pairwise(drawn):
        if place[after.id] < place[before.id]:
            return Broken(after, before, "which draws its random numbers first")
    return None


def _read(graph: Graph, node: Node, maker: int) -> str:
    """Say how a step reads what another makes: as it is, or a view of it."""
    read = [value for value in node.inputs if graph.storage(value).node == maker]
    view = next((value for value in read if value.node != maker), None)
    if view is None or any(value.node == maker for value in read):
        return "which it reads"
    return f"of which it reads the view {_name(graph, view)}"


def _name(graph: Graph, value: Value) -> str:
    return graph.node[value.node].name
