"""The lower bound of an arena: the largest sum of live sizes."""

import heapq
from dataclasses import dataclass

from peakfold.plan.memory.problem import Problem


@dataclass(frozen=True)
class Bound:
    """The largest sum of live sizes.

    Attributes:
        size: bytes; no arena is smaller.
        time: the first time at which so much is live.
        live: the buffers that are live then, by index, the largest first.
    """

    size: int
    time: int
    live: tuple[int, ...]


def lower_bound(problem: Problem) -> Bound:
    """The largest sum of live sizes, and what is live there.

    Example:
        >>> from peakfold.plan.memory.problem import Buffer
        >>> lower_bound(Problem((Buffer("x", 0, 2, 8), Buffer("y", 1, 3, 4), Buffer("z", 2, 4, 6))))
        Bound(size=12, time=1, live=(0, 1))
    """
    events = sorted(event for b in problem.buffers for event in ((b.lower, 1, b.size), (b.upper, 0, -b.size)))
    live = peak = 0
    when = problem.buffers[0].lower
    for time, _, change in events:
        live += change
        if live > peak:
            peak, when = live, time
    there = [i for i, b in enumerate(problem.buffers) if b.lower <= when < b.upper]
    return Bound(peak, when, tuple(sorted(there, key=lambda i: (-problem.buffers[i].size, i))))


def aligned_bound(problem: Problem) -> int:
    """Bytes that no arena is smaller than, as every offset is a multiple of the least alignment.

    All that is live at once but the topmost buffer takes whole multiples of it.

    Example:
        >>> from peakfold.plan.memory.problem import Buffer
        >>> aligned_bound(Problem((Buffer("x", 0, 2, 1, 64), Buffer("y", 1, 3, 60, 64))))
        65
    """
    unit = min(b.alignment for b in problem.buffers)
    rounded = [-(-b.size // unit) * unit for b in problem.buffers]
    starts = [(b.lower, 1, i) for i, b in enumerate(problem.buffers)]
    ends = [(b.upper, 0, i) for i, b in enumerate(problem.buffers)]
    live = most = 0
    rests = list[tuple[int, int]]()
    for time, born, i in sorted(starts + ends):
        if not born:
            live -= rounded[i]
            continue
        live += rounded[i]
        heapq.heappush(rests, (problem.buffers[i].size - rounded[i], problem.buffers[i].upper))
        while rests[0][1] <= time:
            heapq.heappop(rests)
        most = max(most, live + rests[0][0])
    return most
