"""What a planned state is worth."""

from collections.abc import Sequence

from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.saved import Visit
from peakfold.plan.search.scout import worth


def value_of(came: Visit, goal: Goal, times: Sequence[float], eager: float, top: int) -> float | None:
    """Return what a state came to, in seconds; less is better, None where it could not be split.

    Args:
        came: what was planned.
        goal: what is asked.
        times: seconds at which bytes are to be least, where a whole front is searched.
        eager: seconds of eager's step.
        top: bytes of the plan that splits and drops nothing.
    """
    if came.error is not None:
        late = 0.0 if goal.latency is None else 2 * goal.latency
        return worth(goal, came.error.lowest_peak_bytes, late, eager, top)
    if not came.figures:
        return None
    if times:
        return _over_times(came.figures, times, eager, top)
    return min(worth(goal, *figures, eager, top) for figures in came.figures)


def _over_times(
    figures: Sequence[tuple[int, float]], times: Sequence[float], eager: float, top: int
) -> float:
    """What a front comes to over all times: mean bytes, as a share of those of eager's step."""
    within = [[peak for peak, taken in figures if taken <= seconds] for seconds in times]
    mean = sum(min(peaks, default=top) for peaks in within) / len(within)
    return min(mean / max(top, 1), 1.0) * eager
