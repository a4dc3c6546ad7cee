"""Regions around the turn: the end of the forward, and the backward of all that is made there.

In a part of a batch what is made last is often the largest, as the full resolution of a U-Net's decoder is,
and what the backward begins with is there beside it. Such a region is done in finer parts of the same axis
inside of each part; all else, which is slow in small parts, is not.
"""

from collections.abc import Iterator, Mapping, Set

from peakfold.ir.graph import Graph, Node, Value
from peakfold.plan.fission.candidates import Candidate, largest_in
from peakfold.plan.fission.dims import Component
from peakfold.plan.fission.grow import Ground

SHARES = (1 / 4, 3 / 8, 1 / 2)
"""Of the bytes that the forward makes: so much is made in the region."""


def turned(ground: Ground, hot: Set[Value], axis: Component) -> Iterator[Candidate]:
    """Yield regions around the turn from forward to backward, with nothing computed again.

    Args:
        ground: the program.
        hot: storages that live at the peak.
        axis: the axis.
    """
    graph = ground.graph
    steps = [node for node in graph.nodes if node.origin.phase == "forward" and not node.is_view]
    place, stage = ground.reach.place, _stages(ground, steps)
    seen: set[int] = set()
    for first in _firsts(graph, steps) if stage else ():
        inside = {node.id: 0 for node in graph.nodes if node.origin.phase == "forward"}
        inside = {ident: 0 for ident in inside if place[ident] >= place[first]}
        inside |= {ident: 0 for ident, at in stage.items() if at >= place[first]}
        if first not in seen:
            seen.add(first)
            yield from list(largest_in(ground, hot, axis, inside, "turn"))[:1]


def _firsts(graph: Graph, steps: list[Node]) -> Iterator[int]:
    """The first step of a region of each share, the smallest first."""
    sizes = [(node.id, sum(graph.nbytes(value) for value in node.outputs)) for node in reversed(steps)]
    whole = sum(nbytes for _, nbytes in sizes)
    for share in SHARES:
        made = 0
        for ident, nbytes in sizes:
            made += nbytes
            if made > share * whole:
                yield ident
                break


def _stages(ground: Ground, steps: list[Node]) -> Mapping[int, int]:
    """How far back each node of the backward reaches: the first place of the forward that it belongs to.

    A value of the forward belongs to the last step there that reads it: a skip connection, to the decoder.
    """
    graph, place = ground.graph, ground.reach.place
    last = {value: place[node.id] for node in steps for value in node.outputs}
    for node in steps:
        last.update({value: place[node.id] for value in map(graph.storage, node.inputs) if value in last})
    found: dict[int, int] = {}
    for node in graph.nodes:
        if node.origin.phase == "backward":
            read = [graph.storage(value) for value in node.inputs]
            of = (found.get(value.node, last.get(value)) for value in read)
            found[node.id] = min((at for at in of if at is not None), default=len(place))
    return found
