"""The lower bound of an arena: the largest sum of live sizes."""

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
