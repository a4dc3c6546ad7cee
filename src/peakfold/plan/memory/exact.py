"""The exact solver: many short searches of the kernel, each with another order, until one ends.

A search that ends with no packing proves that none exists. The length of the searches grows, so that
every problem is decided in the end. What an order learns is the *heat* of the sections, how often each was
dead: the next orders place first what is live in the hot ones.
The constants were set on the public problems and on random perfect packings.
"""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from peakfold.plan.memory import kernel
from peakfold.plan.memory.greedy import crowding
from peakfold.plan.memory.sections import Columns
from peakfold.plan.memory.tables import (
    BACKWARD,
    FORWARD,
    LIMIT,
    STEPS,
    WIDE,
    Ints,
    Order,
    Tables,
    start,
)

Floats = NDArray[np.float64]

CHUNK = 5_000
"""Steps between two looks at the clock."""

LENGTHS = (1_000, 1_000, 4_000, 10_000)
"""Steps of the searches in turn, for a problem of at most 300 buffers."""

SMALL, WHOLE = 8, 1 << 20
"""Of so few buffers a search tries all orders, if it must: in fewer steps than these."""

COOLING = 0.9
"""What is left of a section's heat after one search."""

SHAPES = ((1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.3), (0.3, 1.0), (2.0, 1.0))
"""Weights of log lifetime and log size in an order, in turn."""

HEAT = 30.0
"""Weight of the heat in an order; before anything is hot the crowding of the sections takes its place."""

LEAD = 0.05
"""What the floor of the hottest buffers counts as lower, in capacities, in every second round of shapes."""

WAYS = ((FORWARD, False), (BACKWARD, False), (WIDE, False), (FORWARD, True))
"""Ways of searching, in turn, and whether the first or the last decision that raised a buffer is blamed."""

CROWDING = 5.0
NOISE = 0.1


@dataclass(frozen=True)
class Clock:
    """A deadline.

    Attributes:
        deadline: in the seconds of ``time.perf_counter``.
    """

    deadline: float

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.perf_counter()

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return self.left <= 0


@dataclass
class Memory:
    """What searches of one way leave for the next ones: the heat of each section, the number of searches."""

    heat: Floats
    way: int = FORWARD
    early: bool = True
    searches: int = 0
    steps: int = 0
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))


def attempt(tables: Tables, table: Columns, capacity: int, memory: Memory, clock: Clock) -> tuple[int, Ints]:
    """One search with the next order.

    Args:
        tables: the problem, for the kernel.
        table: the same problem, by section.
        capacity: bytes.
        memory: changed in place.
        clock: when to stop.

    Returns:
        FOUND and the offsets, DEAD (proved: nothing fits) or LIMIT.
    """
    order = next_order(table, capacity, memory)
    state = start(tables)
    length = next_length(len(table.size), memory.searches)
    result = LIMIT
    while result == LIMIT and state.counter[STEPS] < length and not clock.over:
        before = state.counter[STEPS]
        result = kernel.advance(tables, state, order, capacity, min(CHUNK, length - before))
        if result == LIMIT and state.counter[STEPS] - before < min(CHUNK, length - before):
            break
    memory.searches += 1
    memory.steps += int(state.counter[STEPS])
    memory.heat = COOLING * memory.heat + state.heat
    return int(result), state.head


def next_length(buffers: int, searches: int) -> int:
    """Steps of a search: in turns of ``LENGTHS``, longer for large problems and as searches go by."""
    if buffers <= SMALL:
        return WHOLE
    turn = LENGTHS[searches // len(SHAPES) % len(LENGTHS)]
    return int(turn * max(buffers // 300, 1) << min(searches // 512, 40))


def next_order(table: Columns, capacity: int, memory: Memory) -> Order:
    """The order of the next search: by heat, lifetime and size, with a little noise."""
    turn, shape = divmod(memory.searches, len(SHAPES))
    wide, large = SHAPES[shape]
    hot = crowding(table, memory.heat) / max(memory.heat.max(), 1.0)
    score = wide * np.log(table.width) + large * np.log(table.size) + HEAT * hot
    if not memory.heat.any():
        score += CROWDING * crowding(table, table.total) / table.total.max()
    if turn:
        score += NOISE * memory.random.standard_normal(len(score))
    rank = np.empty(len(score), np.int64)
    rank[np.argsort(-score, kind="stable")] = np.arange(len(score))
    lead = LEAD * capacity * hot if turn % 2 == 0 else np.zeros(len(score))
    return Order(rank, lead.astype(np.int64), memory.way, memory.early)


def memories(sections: int, seed: int) -> Iterator[Memory]:
    """A memory for each way of searching, in turn, for ever."""
    ways = [Memory(np.zeros(sections), way, early, random=np.random.default_rng(seed)) for way, early in WAYS]
    return itertools.cycle(ways)
