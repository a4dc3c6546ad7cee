"""More time for copies than they are said to take, wherever a budget has the bytes for it.

A copy is said to take what one like it took alone. Beside a computation it takes as long as it happens to:
others use the memory, its thread is given a core late. One that has no more than its time is waited for.
So what is gone as soon as its copy could end is gone later, and what is taken as late as its copy could
start is taken earlier, where all rows in between have the bytes to spare. The peak stays what it was.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from peakfold.plan.schedule.arrays import Bytes, Floats, Ints

SHARE = 3.0
"""Seconds beyond its own that a copy is given, over its own."""
WAKING = 4e-3
"""Seconds beyond these, in which a thread that has something to do gets a core."""
ROUNDS = (0.25, 1.0)
"""Parts of these seconds that all copies are given before any is given more."""


@dataclass(slots=True)
class Held:
    """A value that waits on the host.

    Attributes:
        nbytes: of the value.
        seconds: that one copy takes.
        gone: the row from which its bytes are free.
        back: the row from which they are taken again.
        read: the row that reads it next.
    """

    nbytes: int
    seconds: float
    gone: int
    back: int
    read: int


@dataclass
class Rows:
    """The rows of a schedule.

    Attributes:
        times: when each begins, and when the last ends.
        spare: bytes that each could hold beside what it holds.
        before: the last row at or before each that a decision can name.
        behind: the first row at or after each that a decision can name.
    """

    times: Floats
    spare: Bytes
    before: Ints
    behind: Ints


def ease(held: Sequence[Held], rows: Rows) -> None:
    """Move what is gone later and what is back earlier, in place; copies back stay in the order of readers.

    Args:
        held: what waits on the host.
        rows: where; what they can spare becomes less.
    """
    for part in ROUNDS:
        for one in _shortest_first(held):
            _go_later(one, rows, part * (SHARE * one.seconds + WAKING))
        first = 0
        for one in sorted(held, key=lambda one: one.read):
            _come_earlier(one, rows, part * (SHARE * one.seconds + WAKING), first)
            first = max(first, one.back)


def _shortest_first(held: Iterable[Held]) -> list[Held]:
    return sorted(held, key=lambda one: (one.seconds, one.gone))


def _go_later(one: Held, rows: Rows, seconds: float) -> None:
    until = rows.times[one.gone] + seconds
    wanted = min(int(np.searchsorted(rows.times, until)), one.back - 1)
    tight = np.flatnonzero(rows.spare[one.gone : wanted] < one.nbytes)
    row = int(rows.before[one.gone + tight[0] if len(tight) else max(wanted, one.gone)])
    if row > one.gone:
        rows.spare[one.gone : row] -= one.nbytes
        one.gone = row


def _come_earlier(one: Held, rows: Rows, seconds: float, first: int) -> None:
    since = rows.times[one.back] - seconds
    wanted = max(int(np.searchsorted(rows.times, since, "right")) - 1, one.gone + 1, first)
    tight = np.flatnonzero(rows.spare[wanted : one.back] < one.nbytes)
    row = int(rows.behind[wanted + tight[-1] + 1 if len(tight) else min(wanted, one.back)])
    if row < one.back:
        rows.spare[row : one.back] -= one.nbytes
        one.back = row
