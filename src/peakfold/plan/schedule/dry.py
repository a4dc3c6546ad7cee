"""Plans that keep next to nothing of the forward pass for the backward: starts for the least bytes.

What a forward step makes is computed again for each reader behind the loss, and all that it needs with it; it
then stays for the readers that stand close to each other. That is slow, and near the least bytes at once,
where a search that takes one decision after the other comes late: most of a stretch must be gone before
any byte is gained. What can stay is then found from there.
"""

from collections.abc import Iterator

from peakfold.plan.schedule.code import Modes
from peakfold.plan.schedule.frame import DROP, SINCE, Frame
from peakfold.plan.schedule.slots import Slots

SLOWEST = 24.0
"""Multiple of the undecided plan's seconds that such plans may take."""
CLOSE = ((0, 0), (4, 4), (8, 8), (16, 16), (32, 32), (8, 0), (16, 0), (32, 0))
"""Places before a reader from which on what is computed again stays for it, where it is small and where it is
large; 0 for not at all."""


def dry_modes(frame: Frame, slots: Slots, start: Modes) -> Iterator[Modes]:
    """Yield the modes of such plans.

    Args:
        frame: the graph.
        slots: what may be decided.
        start: modes of the plan that drops nothing.
    """
    phases = [frame.tables.graph.node[int(node)].origin.phase for node in frame.tables.nodes]
    turn = min((place for place, step in enumerate(frame.base) if phases[step] == "backward"), default=None)
    choices = slots.choices.tolist()
    late = [] if turn is None else [s for s in choices if s < slots.gaps and slots.end[s] >= turn]
    late = [slot for slot in late if phases[slots.step[slot]] == "forward"]
    if turn is None or not late:
        return
    tails = [slot for slot in choices if slot >= slots.gaps]
    large = max(int(slots.nbytes[slot]) for slot in late) // 2
    for close in CLOSE:
        for again in (False, True):
            modes = start.copy()
            modes[tails] = DROP
            for slot in late:
                begin, end = int(slots.begin[slot]), int(slots.end[slot])
                near = close[int(slots.nbytes[slot]) > large]
                if begin < turn:
                    modes[slot] = SINCE + max(begin, end - near) if near else DROP
                elif again:
                    modes[slot] = DROP
            yield modes
