"""The anytime search: a valid placement at once, a better one while time is left."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from peakfold.plan.memory import exact, greedy
from peakfold.plan.memory.exact import Clock
from peakfold.plan.memory.sections import Columns, pairs, tables
from peakfold.plan.memory.tables import DEAD, FOUND, LIMIT, Ints

MANY = 1 << 62

MOST_BUFFERS, MOST_PAIRS = 4_096, 4_000_000
"""Beyond either of these the exact solver's arrays are too large; orders alone are searched."""

AFTER_PROOF = 24
"""Searches for a small arena after nothing was proved to fit the capacity."""

WIDE_GAP = 0.05
"""Above this gap every second search aims between the bound and the best arena; below, every fourth."""

SEARCHES, SELDOM = 64, 8
"""After so many searches for a capacity every 8th one aims above it: each takes time from those at it."""

NOISE, PUSH = 0.002, 0.2
"""Of a buffer's place in the order, as a fraction: its noise, and the most that one miss moves it forward."""


@dataclass
class Best:
    """The best placement so far, and what is proved.

    Attributes:
        offsets: by buffer.
        arena: bytes.
        floor: no arena is smaller, in bytes.
        goal: the arena to reach, in bytes; 0 for the least.
        is_limit: nothing but the goal is of use: a proof that it cannot be reached ends the search soon.
    """

    offsets: Ints
    arena: int
    floor: int
    goal: int
    is_limit: bool
    size: Ints = field(repr=False)

    @property
    def done(self) -> bool:
        """Whether the goal is reached or no smaller arena exists."""
        return self.arena <= max(self.goal, self.floor)

    @property
    def refuted(self) -> bool:
        """Whether it is proved that the goal cannot be reached."""
        return self.floor > self.goal

    def offer(self, offsets: Ints) -> bool:
        """Take a placement if it is better."""
        arena = int((offsets + self.size).max())
        if arena >= self.arena:
            return False
        self.offsets, self.arena = offsets.copy(), arena
        return True


def first(table: Columns, floor: int, goal: int, clock: Clock, *, is_limit: bool = True) -> Best:
    """The best of the greedy planners."""
    offsets = greedy.by_size(table)
    is_limit = is_limit and goal > 0
    best = Best(offsets, int((offsets + table.size).max()), floor, goal, is_limit, table.size)
    for order in greedy.orders(table):
        for tight in (False, True):
            if best.done or clock.over:
                return best
            best.offer(greedy.fit(table, order, tight))
    return best


class Search:
    """A search for a better placement, which goes on where it stopped.

    Attributes:
        best: the best placement so far.
    """

    def __init__(self, table: Columns, best: Best, seed: int) -> None:
        self.best = best
        self._way: _Exactly | _Orders | None = None
        self._table, self._seed = table, seed

    @property
    def over(self) -> bool:
        """Whether there is nothing left to search for."""
        return self.best.done or (self._way is not None and self._way.over)

    def run(self, clock: Clock, attempts: int = MANY) -> None:
        """Search until the goal is reached, decided, so many attempts are made, or the time is over."""
        if self.over or clock.over:
            return
        if self._way is None:
            large = len(self._table.size) > MOST_BUFFERS or pairs(self._table) > MOST_PAIRS
            self._way = (_Orders if large else _Exactly)(self._table, self.best, self._seed)
        self._way.run(clock, attempts)


class _Exactly:
    """Aims at the goal, or between the goal and the best arena, one search of the kernel after another."""

    def __init__(self, table: Columns, best: Best, seed: int) -> None:
        self._table, self._best, self._arrays = table, best, tables(table)
        self._straight, self._between = (exact.memories(len(table.total), seed + i) for i in range(2))
        self._fractions = _fractions(best, seed)
        self._left, self._result = AFTER_PROOF, LIMIT

    @property
    def over(self) -> bool:
        """Whether enough was searched after a proof that nothing fits the goal."""
        return self._left <= 0

    def run(self, clock: Clock, attempts: int) -> None:
        while attempts > 0 and not (self._best.done or clock.over or self.over):
            attempts -= 1
            self._attempt(clock)

    def _attempt(self, clock: Clock) -> None:
        best = self._best
        aim = max(best.goal, best.floor)
        fraction = 0.5 if self._result == DEAD else next(self._fractions)
        capacity = aim + int((best.arena - 1 - aim) * fraction)
        memory = next(self._between if fraction else self._straight)
        self._result, offsets = exact.attempt(self._arrays, self._table, capacity, memory, clock)
        if self._result == FOUND:
            best.offer(offsets)
        if self._result == DEAD:
            best.floor = max(best.floor, capacity + 1)
        self._left -= best.refuted and best.is_limit


def _fractions(best: Best, seed: int) -> Iterator[float]:
    """Where to aim between the goal (0) and the best arena (1): mostly at the goal."""
    random = np.random.default_rng(seed)
    number = 0
    while True:
        number += 1
        often = 2 if best.arena > (1 + WIDE_GAP) * best.floor else 4
        if best.is_limit and number > SEARCHES:
            often = SELDOM
        yield float(random.random()) if number % often == 0 else 0.0


class _Orders:
    """Moves to the front of the order what ends above the goal, and places again."""

    over = False

    def __init__(self, table: Columns, best: Best, seed: int) -> None:
        self._table, self._best = table, best
        self._random = np.random.default_rng(seed)
        self._urgency = np.zeros(len(table.size))
        base = next(greedy.orders(table))
        self._place = np.empty(len(base))
        self._place[base] = np.arange(len(base)) / len(base)
        self._took = 0.0

    def run(self, clock: Clock, attempts: int) -> None:
        while attempts > 0 and not self._best.done and clock.left > self._took:
            attempts -= 1
            before = clock.left
            self._attempt()
            self._took = before - clock.left

    def _attempt(self) -> None:
        table, best, random = self._table, self._best, self._random
        noise = NOISE * random.standard_normal(len(self._place))
        order = np.argsort(self._place - self._urgency + noise, kind="stable")
        offsets = greedy.fit(table, order, tight=bool(random.random() < 0.5))
        best.offer(offsets)
        over = offsets + table.size > max(best.goal, best.floor)
        self._urgency[over] += PUSH * random.random()
