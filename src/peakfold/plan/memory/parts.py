"""Problems that fall apart: where nothing is live at some time, before and after are placed on their own.

Parts that are alike but for their time, such as the steps of a training loop, are placed once.
"""

from collections.abc import Sequence

import numpy as np

from peakfold.plan.memory import search
from peakfold.plan.memory.exact import Clock
from peakfold.plan.memory.problem import Buffer, Problem
from peakfold.plan.memory.sections import columns

Shape = tuple[tuple[int, int, int, int], ...]

FIRST_TURN, GROWTH = 8, 2
"""Attempts of a part's first turn, and by how much each further turn is longer."""


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
        search.Search(table, best, seed).run(clock)
        return best
    found = _each(problem, apart, best, clock, seed)
    best.floor = max(best.floor, *(part.floor for part in found))
    offsets = np.empty(len(problem.buffers), np.int64)
    for part, indices in zip(found, apart, strict=True):
        offsets[indices] = part.offsets
    best.offer(offsets)
    return best


def _each(
    problem: Problem, apart: Sequence[Sequence[int]], whole: search.Best, clock: Clock, seed: int
) -> list[search.Best]:
    """Place each part; those that are alike once. The turns of those not yet done grow."""
    shapes = [_shape([problem.buffers[i] for i in part]) for part in apart]
    known = {shape: _begun(shape, whole, clock, seed) for shape in dict.fromkeys(shapes)}
    turn = FIRST_TURN
    while not clock.over and (left := [one for one in known.values() if not one.over]):
        for one in left:
            one.run(clock, turn)
            if one.over and one.best.refuted and whole.is_limit:
                return [known[shape].best for shape in shapes]
        turn *= GROWTH
    return [known[shape].best for shape in shapes]


def _shape(buffers: Sequence[Buffer]) -> Shape:
    begin = min(buffer.lower for buffer in buffers)
    return tuple((b.lower - begin, b.upper - begin, b.size, b.alignment) for b in buffers)


def _begun(shape: Shape, whole: search.Best, clock: Clock, seed: int) -> search.Search:
    part = Problem(tuple(Buffer(str(i), *row) for i, row in enumerate(shape)))
    table, goal = columns(part), max(whole.floor, whole.goal)
    best = search.first(table, int(table.total.max()), goal, clock, is_limit=whole.is_limit)
    return search.Search(table, best, seed)
