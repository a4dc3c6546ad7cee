"""The fission tree: which regions could be split, which are, and the moves between such states [MAGIS, 4.3].

A state is one number of parts for each candidate; 1 is disabled. Enabled regions nest or are disjoint.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import Literal

from peakfold.ir.plan import Region, Run
from peakfold.plan.fission.candidates import Candidate

Parts = tuple[int, ...]
Kind = Literal["enable", "lift", "disable", "mutate", "choose", "nest"]

CHOICES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
"""Numbers of parts that are chosen directly."""


@dataclass(frozen=True, slots=True)
class Move:
    """A step from one state to another.

    Attributes:
        kind: what it does.
        index: of the candidate that it is about.
        parts: the state after it.
        above: the other candidate of which it changes the parts; None where there is none.
    """

    kind: Kind
    index: int
    parts: Parts
    above: int | None = None

    @property
    def changed(self) -> tuple[int, ...]:
        """Candidates of which it changes the parts."""
        return (self.index,) if self.above is None else (self.index, self.above)


@dataclass(frozen=True)
class Tree:
    """Candidates, nested by inclusion of their runs.

    Attributes:
        candidates: the nodes of the tree.
    """

    candidates: tuple[Candidate, ...]

    @property
    def disabled(self) -> Parts:
        """The state in which nothing is split."""
        return (1,) * len(self.candidates)

    @cached_property
    def loops(self) -> tuple[tuple[int, ...], ...]:
        """Runs of each loop of each candidate, as bits."""
        number: dict[Run, int] = {}

        def mask(runs: Sequence[Run]) -> int:
            return sum(1 << number.setdefault(run, len(number)) for run in dict.fromkeys(runs))

        return tuple((mask(one.runs), *(mask(piece.runs) for piece in one.rest)) for one in self.candidates)

    @cached_property
    def masks(self) -> tuple[int, ...]:
        """Runs of each candidate, as bits."""
        return tuple(reduce(or_, loops) for loops in self.loops)

    @cached_property
    def parent(self) -> tuple[int | None, ...]:
        """The smallest candidate that has all runs of each one and more."""
        return tuple(self._parent(index) for index in range(len(self.candidates)))

    def _parent(self, index: int) -> int | None:
        above = [k for k in range(len(self.masks)) if self.is_within(index, k)]
        return min(above, key=lambda k: (self.masks[k].bit_count(), k), default=None)

    def is_within(self, inner: int, outer: int) -> bool:
        """Whether a candidate of one loop is in one loop of another candidate, which has more runs."""
        return self.loop_of(inner, outer) is not None

    def loop_of(self, inner: int, outer: int) -> int | None:
        """Return which loop of a candidate has all runs of another one, and more; None where none has."""
        return self._homes[inner][outer]

    @cached_property
    def _homes(self) -> tuple[tuple[int | None, ...], ...]:
        """The loop of each other candidate that each one is in."""
        every = range(len(self.candidates))
        return tuple(tuple(self._home(inner, outer) for outer in every) for inner in every)

    def _home(self, inner: int, outer: int) -> int | None:
        mine = self.masks[inner]
        if self.candidates[inner].rest or mine == self.masks[outer]:
            return None
        return next((at for at, loop in enumerate(self.loops[outer]) if mine & loop == mine), None)

    def fits(self, index: int, parts: Parts) -> bool:
        """Whether a candidate nests with or is disjoint from all that are enabled."""
        mine = self.masks[index]
        for other, count in enumerate(parts):
            if count > 1 and other != index:
                common = mine & self.masks[other]
                nested = self.is_within(index, other) or self.is_within(other, index)
                if common and not (nested and self._nests(index, other, parts)):
                    return False
        return True

    def _nests(self, one: int, other: int, parts: Parts) -> bool:
        """Whether the inner of two nested candidates can be in a part of the outer.

        It is named by first runs, and sizes inside it are numbers: parts of the outer are of one size. Around
        the turn it may be of finer parts along the same axis.
        """
        inner = one if self.is_within(one, other) else other
        outer = other if inner == one else one
        first = all(run.k == 0 for run in self.candidates[inner].runs)
        length, count = self.candidates[outer].length, parts[outer]
        size = -(-length // count)
        even = count == 1 or not length % size
        if not self.is_finer(inner, outer):
            return first and even
        comes_out = size > 1 and (parts[inner] == 1 or _comes_out(size, parts[inner]))
        around = inner in self.turns and outer not in self.turns
        return first and even and comes_out and around and self.candidates[inner].length == length

    def is_finer(self, inner: int, outer: int) -> bool:
        """Whether a nested candidate has parts of the same places that the outer one has parts of."""
        return self.candidates[inner].axis == self.candidates[outer].axis

    @cached_property
    def turns(self) -> tuple[int, ...]:
        """Candidates around the turn."""
        return tuple(k for k, one in enumerate(self.candidates) if one.source == "turn")

    def counts(self, parts: Parts) -> Parts:
        """Return in how many parts each candidate is along its whole axis, with those around it."""
        if all(parts[k] == 1 for k in self.turns):
            return parts
        return tuple(self._count(k, parts) for k in range(len(parts)))

    def _count(self, index: int, parts: Parts) -> int:
        if parts[index] == 1 or index not in self.turns:
            return parts[index]
        around = (
            n for k, n in enumerate(parts) if n > 1 and self.is_within(index, k) and self.is_finer(index, k)
        )
        length = self.candidates[index].length
        size = -(-length // next(around, 1))
        return -(-length // -(-size // parts[index]))

    def moves(self, parts: Parts) -> Iterator[Move]:
        """Yield the moves from a state: those of the paper, nesting, and a direct choice of the parts."""
        for index, candidate in enumerate(self.candidates):
            if parts[index] > 1:
                moves = self._of_enabled(index, candidate, parts)
                yield from (move for move in moves if self._turn_fits(move.parts))
            elif self.fits(index, parts):
                nested = any(count > 1 and self.is_within(index, k) for k, count in enumerate(parts))
                after = _with(parts, index, first_parts(candidate))
                if self.fits(index, after):
                    yield Move("nest" if nested else "enable", index, after)

    def _turn_fits(self, parts: Parts) -> bool:
        """Whether parts around the turn come out in those around them, of which the number may change."""
        return all(self.fits(k, parts) for k in self.turns if parts[k] > 1)

    def _of_enabled(self, index: int, candidate: Candidate, parts: Parts) -> Iterator[Move]:
        inner = [k for k, count in enumerate(parts) if count > 1 and self.is_within(k, index)]
        outer = [k for k, count in enumerate(parts) if count > 1 and self.is_within(index, k)]
        off = _with(parts, index, 1)
        if not inner:
            yield Move("disable", index, off)
        above = self.parent[index]
        if above is not None and not outer:
            lifted = _with(off, above, first_parts(self.candidates[above]))
            if self.fits(above, lifted):
                yield Move("lift", above, lifted, index)
        further = next_parts(candidate, parts[index])
        if further is not None:
            yield Move("mutate", index, _with(parts, index, further))
        for count in choices(candidate.length):
            even = not inner or not candidate.length % count
            if even and count not in (parts[index], further):
                yield Move("choose", index, _with(parts, index, count))

    def outermost(self, parts: Parts) -> tuple[int, ...]:
        """Return the enabled candidates that are inside no other enabled one."""
        on = [index for index, count in enumerate(parts) if count > 1]
        return tuple(k for k in on if not any(self.is_within(k, other) for other in on))

    def inside(self, parts: Parts, outer: int, loop: int | None = None) -> Parts:
        """Return the state of what is nested in an enabled region, or in one of its loops."""
        homes = (row[outer] for row in self._homes)
        return tuple(
            1 if home is None or (loop is not None and home != loop) else count
            for count, home in zip(parts, homes, strict=True)
        )


def region_of(candidate: Candidate, parts: int) -> Region:
    """Return the region of a plan that the first loop of a candidate is."""
    return Region(candidate.axis, parts, _inside(candidate, candidate.runs), None, candidate.anchor)


def rest_of(candidate: Candidate, parts: int) -> tuple[Region, ...]:
    """Return the regions that the other loops of a candidate are."""
    return tuple(
        Region(candidate.axis, parts, _inside(candidate, one.runs), None, one.anchor)
        for one in candidate.rest
    )


def _inside(candidate: Candidate, runs: Sequence[Run]) -> tuple[Run, ...]:
    return tuple(run for run in runs if run not in candidate.outside)


def choices(length: int) -> Sequence[int]:
    """Return the numbers of parts that are worth a try for a length: those that come out, and the length.

    Example:
        >>> list(choices(12)), list(choices(7))
        ([2, 3, 4, 6, 12], [2, 3, 4, 7])
    """
    return [n for n in sorted({*CHOICES, length}) if 2 <= n <= length and _comes_out(length, n)]


def first_parts(candidate: Candidate) -> int:
    """Return the number of parts with which a region is enabled: the least that divides, or 2."""
    length = candidate.length
    return next((n for n in choices(length) if not length % n and n < length), 2)


def next_parts(candidate: Candidate, parts: int) -> int | None:
    """Return the next divisor of the length; None where there is none."""
    length = candidate.length
    return next((n for n in range(parts + 1, length + 1) if not length % n), None)


def _comes_out(length: int, parts: int) -> bool:
    """Whether parts of one size, the last smaller, are so many."""
    size = -(-length // parts)
    return -(-length // size) == parts


def _with(parts: Parts, index: int, count: int) -> Parts:
    return (*parts[:index], count, *parts[index + 1 :])
