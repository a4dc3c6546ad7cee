"""One search over one graph: starts, sweeps and annealing, all into one archive."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from peakfold.budget import require_seed
from peakfold.plan.schedule.annealing import anneal
from peakfold.plan.schedule.archive import Archive, archive, note
from peakfold.plan.schedule.arrays import Tables
from peakfold.plan.schedule.code import Code, Modes, Outcome, Scratch, encode, scratch
from peakfold.plan.schedule.decode import decode
from peakfold.plan.schedule.descent import descend
from peakfold.plan.schedule.dry import dry_modes
from peakfold.plan.schedule.frame import HOLD, Frame
from peakfold.plan.schedule.slots import Slots, slots

RANGES = 256
"""Ranges of the archive between the inputs' bytes and the peak without any decision."""
LEVELS = 40
"""Targets of the greedy descent."""
PUSHES = (0.9, 0.6, 0.8)
"""Parts of the lowest peak found, the inputs apart, that are tried in turn where no plan keeps a target."""
SLOWEST = 6.0
"""Plans beyond this multiple of the undecided plan's seconds are not looked at."""


@dataclass(frozen=True, slots=True)
class Cooling:
    """How an annealing goes; times are multiples of the undecided plan's seconds.

    Attributes:
        rounds: number of proposals.
        weight: what an excess of all bytes that are not inputs counts for.
        heats: temperatures at the start, in turn.
        cold: temperature at the end.
    """

    rounds: int
    weight: float
    heats: tuple[float, ...]
    cold: float


NEAR = Cooling(2000, 2.0, (3e-3, 1e-3, 3e-4), 1e-5)
"""Around a plan that keeps the target."""
DOWN = Cooling(20_000, 600.0, (10.0, 3.0, 30.0), 1e-3)
"""Where none does: time counts little, and steps are bold."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan in the archive."""

    peak: int
    seconds: float
    modes: Modes


class Explorer:
    """A search in progress. Every plan that it decodes may enter the archive."""

    def __init__(
        self, frame: Frame, seed: int, budgets: tuple[int, ...] = (), order: tuple[int, ...] = ()
    ) -> None:
        require_seed(seed, "search")
        self.frame = frame
        self.order = order
        self.code: Code = encode(frame)
        self.slots: Slots = slots(frame)
        self.scratch: Scratch = scratch(self.code)
        self.random = np.array([seed], np.uint64)
        self.start = self._start()
        self.plain = self._decode(self.start)
        self.kept: Archive = archive(self._edges(budgets), len(self.start))
        self.chunks = 0
        note(self.kept, self.start, self.plain)

    @property
    def tables(self) -> Tables:
        """The graph."""
        return self.frame.tables

    def compile(self) -> None:
        """Have the search's functions compiled, which takes seconds where it was never done on a machine."""
        undecided = Candidate(self.plain.peak, self.plain.seconds, self.start)
        descend(self.code, self.scratch, self.slots, self.kept, self.start.copy(), self.plain.peak, np.inf, 0)
        self._anneal(undecided, self.plain.peak, np.inf, NEAR, 0)

    @property
    def states(self) -> int:
        """Number of plans decoded so far."""
        return int(self.kept.tried[0])

    @cached_property
    def levels(self) -> list[int]:
        """Falling targets of the descent."""
        found = np.linspace(self.plain.peak, self.tables.resident, LEVELS + 1)[1:]
        return [int(level) for level in found]

    def descend(self, seconds: float, is_late: Callable[[], bool] = lambda: False) -> None:
        """Lower the target from the undecided plan's peak as far as the greedy choice, or time, reaches."""
        modes = self.start.copy()
        for level in self.levels:
            outcome = descend(
                self.code, self.scratch, self.slots, self.kept, modes, level, seconds, len(modes)
            )
            if outcome.length < 0 or outcome.excess > 0 or is_late():
                return

    @cached_property
    def driest(self) -> int:
        """The lowest peak of the plans that keep next to nothing."""
        found = (self._decode(modes) for modes in dry_modes(self.frame, self.slots, self.start))
        return min((one.peak for one in found if one.length >= 0), default=self.plain.peak)

    def dry(self) -> None:
        """Look at plans that keep next to nothing; they enter the archive where nothing else is as low."""
        for modes in dry_modes(self.frame, self.slots, self.start):
            note(self.kept, modes, self._decode(modes))

    def anneal(self, target: int, seconds: float, most: int | None = None, bold: bool = True) -> int:
        """Search around the best plan for a target; return the number of proposals, ``most`` at most.

        Where no plan keeps the target, the search starts at the lowest peak found. If it is ``bold``, it
        heads for a peak between the two, with time counting less.
        """
        self.chunks += 1
        begin = self.within(target, seconds)
        if begin is not None:
            return self._anneal(begin, target, seconds, NEAR, most)
        begin = self.lowest(seconds)
        if begin is None:
            return 0
        if not bold:
            return self._anneal(begin, target, seconds, NEAR, most)
        inputs = self.tables.resident
        share = PUSHES[self.chunks % len(PUSHES)]
        between = max(target, int(inputs + share * (begin.peak - inputs)))
        return self._anneal(begin, between, seconds, DOWN, most)

    def _anneal(self, begin: Candidate, target: int, seconds: float, way: "Cooling", most: int | None) -> int:
        base = self.plain.seconds
        rounds = way.rounds if most is None else min(way.rounds, most)
        anneal(
            self.code,
            self.scratch,
            self.slots,
            self.kept,
            begin.modes.copy(),
            target,
            seconds,
            way.weight * base / max(self.plain.peak - self.tables.resident, 1),
            way.heats[self.chunks % len(way.heats)] * base,
            way.cold * base,
            rounds,
            self.random,
        )
        return rounds

    def within(self, peak: int, seconds: float = np.inf) -> Candidate | None:
        """Return the fastest plan found within a peak and a time."""
        fits = np.flatnonzero((self.kept.peaks <= peak) & (self.kept.seconds <= seconds))
        return (
            self._row(fits[np.lexsort((self.kept.peaks[fits], self.kept.seconds[fits]))])
            if len(fits)
            else None
        )

    def lowest(self, seconds: float = np.inf) -> Candidate | None:
        """Return the plan of the lowest peak found within a time."""
        fits = np.flatnonzero(np.isfinite(self.kept.seconds) & (self.kept.seconds <= seconds))
        return (
            self._row(fits[np.lexsort((self.kept.seconds[fits], self.kept.peaks[fits]))])
            if len(fits)
            else None
        )

    def front(self) -> list[Candidate]:
        """Return the plans that no other beats in both, from the highest peak to the lowest."""
        found: list[Candidate] = []
        for row in np.argsort(self.kept.peaks, kind="stable"):
            seconds = float(self.kept.seconds[row])
            if np.isfinite(seconds) and (not found or seconds < found[-1].seconds):
                found.append(self._row(np.array([row])))
        return found[::-1]

    def _row(self, rows: npt.NDArray[np.int64]) -> Candidate:
        row = int(rows[0])
        return Candidate(
            int(self.kept.peaks[row]), float(self.kept.seconds[row]), self.kept.modes[row].copy()
        )

    def _start(self) -> Modes:
        """Nothing dropped before its last base reader; what is dropped after it may run again."""
        modes = np.zeros(len(self.slots.step), np.int16)
        tails = modes[self.slots.gaps :]
        tails[self.slots.open[self.slots.gaps :]] = HOLD
        return modes

    def _decode(self, modes: Modes) -> Outcome:
        found: Outcome = decode(self.code, self.scratch, modes, 0, np.inf)
        return found

    def _edges(self, budgets: tuple[int, ...]) -> npt.NDArray[np.int64]:
        even = np.linspace(self.tables.resident, self.plain.peak, RANGES + 1).astype(np.int64)[1:]
        top = np.array([self.plain.peak, *(b for b in budgets if b < self.plain.peak)], np.int64)
        return np.unique(np.concatenate([even, top]))
