"""States of the search, their hashes, and the archive of the best."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from peakfold.plan.fission.tree import Parts
from peakfold.plan.schedule.found import Point, front_of
from peakfold.plan.schedule.goal import Goal


@cache
def word(index: int, parts: int) -> int:
    """Return the random word of one decision, the same in every run.

    Example:
        >>> word(3, 4) == word(3, 4), word(3, 4) == word(3, 5)
        (True, False)
    """
    return int.from_bytes(hashlib.blake2b(f"{index}/{parts}".encode(), digest_size=8).digest())


def rehash(before: int, index: int, old: int, new: int) -> int:
    """Return the hash of a state in which one decision changed: the exclusive or of all decisions' words.

    Example:
        >>> rehash(rehash(0, 2, 1, 4), 2, 4, 1)
        0
    """
    for parts in (old, new):
        before ^= word(index, parts) if parts > 1 else 0
    return before


@dataclass(frozen=True, slots=True)
class State:
    """How many parts each candidate of the tree has.

    Attributes:
        parts: of each candidate.
        code: hash of it.
    """

    parts: Parts
    code: int

    def to(self, parts: Parts, changed: Iterable[int] | None = None) -> "State":
        """Return the state that a move leads to.

        Args:
            parts: of each candidate.
            changed: the candidates of which the move may change them; any where None.

        Example:
            >>> start = State((1, 2, 1), rehash(0, 1, 1, 2))
            >>> start.to((4, 2, 1), (0,)) == start.to((4, 2, 1))
            True
        """
        code = self.code
        for index in range(len(parts)) if changed is None else changed:
            if self.parts[index] != parts[index]:
                code = rehash(code, index, self.parts[index], parts[index])
        return State(parts, code)


class Archive:
    """The plans that no other one beats in both bytes and seconds: monotone by construction."""

    def __init__(self) -> None:
        """Begin empty."""
        self.front: tuple[Point, ...] = ()

    def add(self, *found: Point) -> None:
        """Take plans in where none is there that is as good."""
        self.front = front_of((*self.front, *found))

    def best(self, goal: Goal) -> Point | None:
        """Return the fastest that keeps the limits; the smallest where seconds alone are given."""
        fits = [
            one
            for one in self.front
            if (goal.memory is None or one.peak_bytes <= goal.memory) and one.seconds <= goal.seconds
        ]
        if goal.by_bytes:
            return min(fits, key=lambda one: (one.peak_bytes, one.seconds), default=None)
        return min(fits, key=lambda one: (one.seconds, one.peak_bytes), default=None)
