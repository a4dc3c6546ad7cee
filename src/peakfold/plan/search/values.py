"""What a planned state is worth."""

from collections.abc import Sequence

from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.saved import Visit
from peakfold.plan.search.scout import worth


def values_of(
    came: Visit, goal: Goal, times: Sequence[float], eager: float, top: int
) -> tuple[float, ...] | None:
    """Return what a state came to, in seconds, at each time of a front, else for the goal.

    Less is better; None where it could not be split.

    Args:
        came: what was planned.
        goal: what is asked.
        times: seconds at which bytes are to be least, where a whole front is searched.
        eager: seconds of eager's step.
        top: bytes of the plan that splits and drops nothing.
    """
    if came.error is not None:
        late = 0.0 if goal.latency is None else 2 * goal.latency
        return (worth(goal, came.error.lowest_peak_bytes, late, eager, top),)
    if not came.figures:
        return None
    if times:
        within = ([peak for peak, taken in came.figures if taken <= seconds] for seconds in times)
        return tuple(min(min(peaks, default=top) / max(top, 1), 1.0) * eager for peaks in within)
    return (min(worth(goal, *figures, eager, top) for figures in came.figures),)
