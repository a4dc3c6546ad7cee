"""From a problem to a placement."""

import functools
import time

from peakfold.budget import require_seed
from peakfold.errors import InfeasibleError, UsageError
from peakfold.plan.memory import search
from peakfold.plan.memory.bound import Bound, aligned_bound, lower_bound
from peakfold.plan.memory.exact import Clock
from peakfold.plan.memory.parts import solve
from peakfold.plan.memory.problem import Buffer, Placement, Problem, Status, as_int
from peakfold.plan.memory.sections import columns

DEFAULT_SECONDS = 10.0
SHOWN = 3


def plan(
    problem: Problem, capacity: int | None = None, time_budget: float = DEFAULT_SECONDS, seed: int = 0
) -> Placement:
    """Give every buffer an offset in one arena.

    The greedy planners go first, so that a placement exists at once; then the search tries to reach the
    capacity, or without one the lower bound, until that is done, proved impossible, or the time is over.

    Args:
        problem: the buffers.
        capacity: bytes that the arena may have; None for as small as possible.
        time_budget: seconds, compilation of the search apart.
        seed: the same seed gives the same placement, unless the time runs out first.

    Returns:
        The best placement found; its status says whether it fits.

    Raises:
        InfeasibleError: the capacity is below the largest buffer or below the lower bound.
        UsageError: the capacity or the seed is no integer, the seed is out of range, or the time is none.

    Example:
        >>> two = Problem((Buffer("x", 0, 2, 8), Buffer("y", 1, 3, 8)))
        >>> plan(two, capacity=16).arena
        16
    """
    limit, start = _whole("capacity", capacity), _whole("seed", seed)
    _check(time_budget)
    require_seed(start or 0, "memory")
    bound = lower_bound(problem)
    if limit is not None:
        _refuse(problem, bound, limit)
    _compile()
    begin = time.perf_counter()
    floor = max(bound.size, aligned_bound(problem))
    best = solve(problem, floor, limit or 0, Clock(begin + time_budget), start or 0)
    return Placement(
        offsets=tuple(int(offset) for offset in best.offsets),
        arena=int(best.arena),
        lower_bound=int(best.floor),
        status=_status(best, limit),
        seconds=time.perf_counter() - begin,
    )


def _whole(name: str, number: int | None) -> int | None:
    whole = as_int(number)
    if whole is None and number is not None:
        raise UsageError(
            stage="memory",
            what=f"the {name} is not a whole number",
            expected="an int",
            got=repr(number),
            hint=f"round it, or leave the {name} out",
        )
    return whole


def _check(time_budget: float) -> None:
    if not time_budget >= 0:
        raise UsageError(
            stage="memory",
            what="the time budget is no time",
            expected="seconds, 0 or more",
            got=repr(time_budget),
            hint="give a number of seconds",
        )


def _status(best: search.Best, capacity: int | None) -> Status:
    if capacity is not None and best.arena > capacity:
        return "infeasible" if best.refuted else "not found"
    if best.arena <= best.floor:
        return "optimal"
    return "improvable" if capacity is None else "fits"


def _refuse(problem: Problem, bound: Bound, capacity: int) -> None:
    """Refuse a capacity that no arena can have."""
    index = max(range(len(problem.buffers)), key=lambda i: problem.buffers[i].size)
    largest = problem.buffers[index]
    if capacity < largest.size:
        what = "the capacity is below the largest buffer"
        where = f"{largest.named} ({index + 1} of {len(problem.buffers)})"
        raise _too_small(
            what, where, f"{largest.size} bytes; the lower bound is {bound.size}", capacity, bound
        )
    if capacity < bound.size:
        what = "the capacity is below the lower bound"
        some = ", ".join(f"{problem.buffers[i].named}: {problem.buffers[i].size}" for i in bound.live[:SHOWN])
        where = f"time {bound.time}, where {len(bound.live)} buffers are live, the largest: {some}"
        raise _too_small(what, where, f"{bound.size} bytes or more", capacity, bound)


def _too_small(what: str, where: str, expected: str, capacity: int, bound: Bound) -> InfeasibleError:
    got = f"{capacity} bytes"
    hint = (
        f"allow more: nothing smaller than {bound.size} bytes exists, and a placement may need more than that"
    )
    error = InfeasibleError(stage="memory", what=what, where=where, expected=expected, got=got, hint=hint)
    error.lower_bound_bytes = bound.size
    return error


@functools.cache
def _compile() -> None:
    """Compile the planners, once a process, outside every time budget."""
    sizes = (3, 3, 2, 2)
    lives = ((0, 2), (1, 3), (2, 4), (0, 1))
    small = Problem(
        tuple(Buffer(str(i), *life, size) for i, (life, size) in enumerate(zip(lives, sizes, strict=True)))
    )
    table = columns(small)
    forever = Clock(float("inf"))
    best = search.first(table, 1, 1, forever)
    search.Search(table, best, 0).run(forever)
