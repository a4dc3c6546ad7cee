"""What is best at each time is planned once more, for that time alone."""

from collections.abc import Sequence

from peakfold.plan.schedule.deadline import Deadline
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.states import Archive
from peakfold.plan.search.visits import Again


def again(
    times: Sequence[float], count: int, archive: Archive, deadline: Deadline, workers: int
) -> list[Again]:
    """Return what to plan once more for the first of some times; those behind have as much time each.

    Args:
        times: seconds of a step.
        count: how many of them.
        archive: what is known: it decides what is planned, whatever the number of processes.
        deadline: of all times together.
        workers: processes that plan side by side.
    """
    now, left, width = deadline.now(), deadline.left, max(min(workers, count), 1)
    asked = []
    for at, seconds in enumerate(times[:count]):
        best = archive.best(Goal(None, seconds))
        share = min((at // width + 1) * width / len(times), 1.0)
        if best is not None:
            asked.append(Again(best.plan.regions, seconds, now + share * left))
    return asked
