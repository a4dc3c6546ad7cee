"""The widest region along an axis: everything that can be done in parts, less what would close a circle."""

from collections.abc import Iterable, Sequence

from peakfold.ir.graph import Graph
from peakfold.ir.plan import Run
from peakfold.ir.regions import candidates
from peakfold.plan.fission.assign import Refusal, assign
from peakfold.plan.fission.dims import Component
from peakfold.plan.fission.reach import Reach
from peakfold.plan.fission.reading import Reading
from peakfold.plan.fission.split import within


def widest(
    graph: Graph, axis: Component, of: Iterable[int] | None = None, reading: Reading | None = None
) -> tuple[Run, ...]:
    """Return the runs of the widest region along an axis that is found by leaving out what is refused.

    A node that cannot be done in parts stays outside, and so does what it needs of the region, or what
    needs it, whichever is less. Of a view that cannot, what reads it does.

    Args:
        graph: the program, prepared.
        axis: the axis.
        of: ids of the nodes to choose from; all but updates when None.
        reading: of the graph, where it is at hand.
    """
    chosen = candidates(graph) if of is None else tuple(of)
    phase = {node.id: node.origin.phase for node in graph.nodes}
    ids = [ident for ident in chosen if of is not None or phase[ident] != "update"]
    if axis.shares:
        along = {value for value, _ in axis.members}
        ids = [i for i in ids if any(v in along for v in (*graph.node[i].inputs, *graph.node[i].outputs))]
    reading = reading or Reading(graph)
    steps = [node.id for node in graph.nodes if not node.is_view]
    while ids:
        ids = _convex(reading.reach, steps, ids)
        inside = within(graph, [Run(ident) for ident in ids])
        found = assign(graph, [Run(ident) for ident in inside], axis, None, reading)
        if not isinstance(found, Refusal):
            break
        if found.node is None:
            return ()
        left = _left_out(graph, found.node)
        if left.isdisjoint(ids):
            return ()
        ids = [ident for ident in ids if ident not in left]
    return tuple(Run(ident) for ident in sorted(ids))


def _left_out(graph: Graph, refused: int) -> set[int]:
    """A node that is refused; of a view, the steps that read it, through others too."""
    found, waiting = set[int](), [refused]
    while waiting:
        node = graph.node[waiting.pop()]
        found.add(node.id)
        if node.is_view:
            readers = {user for value in node.outputs for user in graph.users.get(value, ())}
            waiting += readers - found
    return found


def _convex(reach: Reach, steps: Sequence[int], ids: Sequence[int]) -> list[int]:
    """Return what is left of nodes when nothing outside stands between two of them."""
    left = reach.mask(ids)
    for place in (reach.place[ident] for ident in steps):
        if left >> place & 1:
            continue
        needs, feeds = left & reach.before[place], left & reach.after[place]
        if needs and feeds:
            left &= ~(needs if needs.bit_count() <= feeds.bit_count() else feeds)
    return [ident for ident in ids if left >> reach.place[ident] & 1]
