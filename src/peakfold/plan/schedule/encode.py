"""From a vector of modes back to the decisions of a Plan."""

from collections.abc import Sequence

from peakfold.ir.plan import Plan, Recompute
from peakfold.plan.schedule.frame import DROP, KEEP, SINCE, Frame
from peakfold.plan.schedule.sequence import Walk


def plan_of(frame: Frame, modes: Sequence[int], order: Sequence[int] = ()) -> Plan:
    """Return the plan that comes to the same runs as a vector of modes.

    What is dropped where nothing would read it again is left out.
    """
    nodes = frame.tables.nodes.tolist()
    recompute = [
        Recompute(
            nodes[_producer(frame, slot)],
            nodes[use],
            modes[slot] != DROP,
            nodes[frame.base[modes[slot] - SINCE]] if modes[slot] >= SINCE else None,
        )
        for slot, use in _decisions(frame, modes).items()
    ]
    return Plan(frame.tables.graph.digest, tuple(sorted(recompute)), order=tuple(order))


def _decisions(frame: Frame, modes: Sequence[int]) -> dict[int, int]:
    """The step that names each slot that is dropped and read again: a gap's user, or a batch's step."""
    walk = Walk(frame, modes)
    found: dict[int, int] = {}
    for step in frame.base.tolist():
        for maker in walk.missing(step):
            for slot in map(walk.slot, walk.made(maker)):
                if modes[slot] != KEEP and slot not in found:
                    gap = slot < frame.gaps
                    found[slot] = int(frame.gap_user[slot]) if gap else _stranger(frame, maker, step)
        walk.run(step)
    return found


def _producer(frame: Frame, slot: int) -> int:
    return int(frame.gap_producer[slot]) if slot < frame.gaps else slot - frame.gaps


def _stranger(frame: Frame, maker: int, step: int) -> int:
    """A base step, the given one where possible, that does not read a step's outputs; at worst itself."""
    place = int(frame.rank[step])
    later = frame.base[place:].tolist()
    earlier = frame.base[int(frame.rank[maker]) + 1 : place][::-1].tolist()
    return next((s for s in (*later, *earlier) if (maker, s) not in frame.gap_of), maker)
