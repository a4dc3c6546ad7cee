"""The anytime search: a valid placement at once, a better one while time is left."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from peakfold.plan.memory import exact, greedy
from peakfold.plan.memory.exact import Clock, Memory
from peakfold.plan.memory.kernel import DEAD, FOUND, LIMIT, Ints
from peakfold.plan.memory.sections import Columns, pairs, tables

MOST_BUFFERS, MOST_PAIRS = 4_096, 4_000_000
"""Beyond either of these the exact solver's arrays are too large; orders alone are searched."""

AFTER_PROOF = 24
"""Searches for a small arena after nothing was proved to fit the capacity."""

WIDE_GAP = 0.05
"""Above this gap every second search aims between the bound and the best arena; below, every fourth."""

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
    """

    offsets: Ints
    arena: int
    floor: int
    goal: int
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


def first(table: Columns, floor: int, goal: int, clock: Clock) -> Best:
    """The best of the greedy planners."""
    offsets = greedy.by_size(table)
    best = Best(offsets, int((offsets + table.size).max()), floor, goal, table.size)
    for order in greedy.orders(table):
        for tight in (False, True):
            if best.done or clock.over:
                return best
            best.offer(greedy.fit(table, order, tight))
    return best


def improve(table: Columns, best: Best, clock: Clock, seed: int) -> None:
    """Search on until the goal is reached, decided, or the time is over."""
    if best.done or clock.over:
        return
    if len(table.size) > MOST_BUFFERS or pairs(table) > MOST_PAIRS:
        _improve_orders(table, best, clock, seed)
    else:
        _improve_exactly(table, best, clock, seed)


def _improve_exactly(table: Columns, best: Best, clock: Clock, seed: int) -> None:
    arrays = tables(table)
    straight, between = (_memory(table, seed + i) for i in range(2))
    fractions = _fractions(best, seed)
    left, result = AFTER_PROOF, LIMIT
    while not (best.done or clock.over or left == 0):
        aim = max(best.goal, best.floor)
        fraction = 0.5 if result == DEAD else next(fractions)
        capacity = aim + int((best.arena - 1 - aim) * fraction)
        memory = between if fraction else straight
        result, offsets = exact.attempt(arrays, table, capacity, memory, clock)
        if result == FOUND:
            best.offer(offsets)
        if result == DEAD:
            best.floor = max(best.floor, capacity + 1)
        left -= best.refuted and best.goal > 0


def _memory(table: Columns, seed: int) -> Memory:
    return Memory(np.zeros(len(table.total)), random=np.random.default_rng(seed))


def _fractions(best: Best, seed: int) -> Iterator[float]:
    """Where to aim between the goal (0) and the best arena (1): mostly at the goal."""
    random = np.random.default_rng(seed)
    number = 0
    while True:
        number += 1
        often = 2 if best.arena > (1 + WIDE_GAP) * best.floor else 4
        yield float(random.random()) if number % often == 0 else 0.0


def _improve_orders(table: Columns, best: Best, clock: Clock, seed: int) -> None:
    """Move to the front of the order what ends above the goal, and place again."""
    random = np.random.default_rng(seed)
    urgency = np.zeros(len(table.size))
    base = next(greedy.orders(table))
    place = np.empty(len(base))
    place[base] = np.arange(len(base)) / len(base)
    took = 0.0
    while not best.done and clock.left > took:
        before = clock.left
        order = np.argsort(place - urgency + NOISE * random.standard_normal(len(place)), kind="stable")
        offsets = greedy.fit(table, order, tight=bool(random.random() < 0.5))
        best.offer(offsets)
        over = offsets + table.size > max(best.goal, best.floor)
        urgency[over] += PUSH * random.random()
        took = before - clock.left
