"""States of the search, their hashes, and the archive of the best."""

import hashlib
from dataclasses import dataclass

from peakfold.ir.plan import Plan
from peakfold.plan.fission.tree import Parts


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

    def to(self, parts: Parts) -> "State":
        """Return the state that a move leads to."""
        code = self.code
        for index, (old, new) in enumerate(zip(self.parts, parts, strict=True)):
            if old != new:
                code = rehash(code, index, old, new)
        return State(parts, code)


@dataclass(frozen=True, slots=True)
class Reached:
    """A plan that the search came to.

    Attributes:
        peak_bytes: predicted most bytes at once.
        seconds: predicted time of one step.
        plan: the decisions.
    """

    peak_bytes: int
    seconds: float
    plan: Plan


class Archive:
    """The plans that no other one beats in both bytes and seconds: monotone by construction."""

    def __init__(self) -> None:
        """Begin empty."""
        self.front: list[Reached] = []

    def add(self, found: Reached) -> bool:
        """Take a plan in unless one is there that is as good; return whether it was taken."""
        if any(o.peak_bytes <= found.peak_bytes and o.seconds <= found.seconds for o in self.front):
            return False
        left = [o for o in self.front if o.peak_bytes < found.peak_bytes or o.seconds < found.seconds]
        self.front = sorted([*left, found], key=lambda one: (one.peak_bytes, one.seconds))
        return True

    def best(self, memory: int | None, seconds: float | None) -> Reached | None:
        """Return the fastest within the bytes and seconds; the smallest where seconds alone are given."""
        fits = [
            one
            for one in self.front
            if (memory is None or one.peak_bytes <= memory) and (seconds is None or one.seconds <= seconds)
        ]
        if memory is None and seconds is not None:
            return min(fits, key=lambda one: (one.peak_bytes, one.seconds), default=None)
        return min(fits, key=lambda one: (one.seconds, one.peak_bytes), default=None)
