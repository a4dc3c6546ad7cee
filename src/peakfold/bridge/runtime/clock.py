"""A clock in a running program: how long each of its steps takes, where it runs."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import torch

Now = Callable[[], float]
T = TypeVar("T")


class Clock:
    """Runs a program whose source marks the ends of its steps, and keeps the seconds of each.

    Attributes:
        seconds: of the last run: up to each mark from the one before, and from the last mark to the end.

    Example:
        >>> ticks = iter((0.0, 1.0, 4.0, 4.5))
        >>> clock = Clock(lambda: next(ticks))
        >>> clock.run(lambda mark: (mark(), mark()))
        (None, None)
        >>> clock.seconds
        [1.0, 3.0, 0.5]
    """

    def __init__(self, now: Now | None = None) -> None:
        """Read a clock; by default CPU seconds of the thread where torch has one, else wall seconds."""
        self._now = now or (time.thread_time if torch.get_num_threads() == 1 else time.perf_counter)
        self.seconds: list[float] = []

    def run(self, step: Callable[[Callable[[], None]], T]) -> T:
        """Run a step, which is given the function that marks the end of a part of it."""
        read: list[float] = []
        now, note = self._now, read.append

        def mark() -> None:
            note(now())

        mark()
        result = step(mark)
        mark()
        self.seconds = [end - begin for begin, end in pairwise(read)]
        return result
