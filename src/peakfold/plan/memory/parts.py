"""Problems that fall apart: where nothing is live at some time, before and after are placed on their own.

Parts that are alike but for their time, such as the steps of a training loop, are placed once.
"""

import time
from collections.abc import Sequence

import numpy as np

from peakfold.plan.memory import search
from peakfold.plan.memory.exact import Clock
from peakfold.plan.memory.kernel import Ints
from peakfold.plan.memory.problem import Buffer, Problem
from peakfold.plan.memory.sections import columns

Shape = tuple[tuple[int, int, int, int], ...]


def parts(problem: Problem) -> list[list[int]]:
    """Return the indices of the buffers of each part, in order of time.

    Example:
        >>> parts(Problem((Buffer("a", 0, 2, 8), Buffer("c", 3, 4, 8), Buffer("b", 1, 3, 8))))
        [[0, 2], [1]]
    """
    found: list[list[int]] = []
    end = 0
    for i in sorted(range(len(problem.buffers)), key=lambda i: problem.buffers[i].lower):
        buffer = problem.buffers[i]
        if not found or buffer.lower >= end:
            found.append([])
            end = buffer.upper
        found[-1].append(i)
        end = max(end, buffer.upper)
    return [sorted(part) for part in found]


def solve(problem: Problem, floor: int, goal: int, clock: Clock, seed: int) -> search.Best:
    """Return the best placement found until the clock is over.

    Args:
        problem: the buffers.
        floor: bytes that no arena is smaller than.
        goal: the arena to reach, in bytes; 0 for the least.
        clock: when to stop.
        seed: of the search.
    """
    table = columns(problem)
    best = search.first(table, floor, goal, clock)
    apart = [] if best.done else parts(problem)
    if len(apart) < 2:
        search.improve(table, best, clock, seed)
        return best
    found = _each(problem, apart, max(floor, goal), clock, seed)
    best.floor = max(floor, *(part.floor for part in found))
    offsets = np.empty(len(problem.buffers), np.int64)
    for part, indices in zip(found, apart, strict=True):
        offsets[indices] = part.offsets
    best.offer(offsets)
    return best


def _each(
    problem: Problem, apart: Sequence[Sequence[int]], goal: int, clock: Clock, seed: int
) -> list[search.Best]:
    """Place each part; those that are alike once, and each with its share of the time that is left."""
    shapes = [_shape([problem.buffers[i] for i in part]) for part in apart]
    different = dict.fromkeys(shapes)
    known: dict[Shape, search.Best] = {}
    for done, shape in enumerate(different):
        share = clock.left / (len(different) - done)
        known[shape] = _solved(shape, goal, Clock(time.perf_counter() + share), seed)
    return [known[shape] for shape in shapes]


def _shape(buffers: Sequence[Buffer]) -> Shape:
    begin = min(buffer.lower for buffer in buffers)
    return tuple((b.lower - begin, b.upper - begin, b.size, b.alignment) for b in buffers)


def _solved(shape: Shape, goal: int, clock: Clock, seed: int) -> search.Best:
    part = Problem(tuple(Buffer(str(i), *row) for i, row in enumerate(shape)))
    table = columns(part)
    best = search.first(table, _live(table.total), goal, clock)
    search.improve(table, best, clock, seed)
    return best


def _live(total: Ints) -> int:
    return int(total.max())
