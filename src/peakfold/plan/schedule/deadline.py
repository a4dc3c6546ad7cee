"""When a search is to end: at a time of a clock, or never, where iterations are counted instead."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

Now = Callable[[], float]
"""Gives seconds of a clock that never goes back."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time of a clock; every stage asks whether it is over, and gives what it has then.

    Attributes:
        at: the time; infinite for none.
        now: the clock. The usual one is the same in all processes of a machine.

    Example:
        >>> whole = Deadline.after(10.0, lambda: 5.0)
        >>> whole.left, whole.part(0.2).left, whole.is_over, Deadline().left
        (10.0, 2.0, False, inf)
    """

    at: float = inf
    now: Now = time.monotonic

    @staticmethod
    def after(seconds: float, now: Now = time.monotonic) -> "Deadline":
        """Return the deadline so many seconds from now."""
        return Deadline(now() + seconds, now)

    @property
    def left(self) -> float:
        """Seconds until it is over, none at least."""
        return inf if self.at == inf else max(self.at - self.now(), 0.0)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def part(self, share: float) -> "Deadline":
        """Return an earlier one, after a share of what is left."""
        return Deadline(self.at - (1 - share) * self.left, self.now) if self.at < inf else self
