"""The words for a search that found no plan within the limits."""

from collections.abc import Iterator, Mapping
from math import ceil

from peakfold.errors import InfeasibleError
from peakfold.plan.schedule.explore import Candidate
from peakfold.plan.schedule.found import StopReason
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.search import Search

TOP = 6
"""How many tensors are named."""
UNITS = (("GB", 1e9, 2), ("MB", 1e6, 1), ("kB", 1e3, 1))
ENDS: Mapping[StopReason, str] = {
    "interrupted": "the search was interrupted",
    "time": "the time of the search ended",
    "iterations": "the iterations of the search ended",
    "converged": "the search came no lower any more",
}
MOST_TIMES = 1000
"""Times a limit of the time that are said as a ratio to it."""
CUT_SHORT: frozenset[StopReason] = frozenset({"interrupted", "time", "iterations"})


def infeasible(search: Search, goal: Goal, reason: StopReason) -> InfeasibleError:
    """Say why the search ended, the lowest peak that it found, what is live there, and the bound."""
    lowest = search.explorer.lowest(goal.seconds) or search.explorer.lowest()
    assert lowest is not None
    error = InfeasibleError(
        stage="plan",
        what=f"no program within the budget was found: {_end(search, goal, reason)}",
        where=f"largest at the lowest peak: {', '.join(_live(search, lowest))}",
        expected=_wanted(goal),
        got=f"lowest peak {bytes_text(lowest.peak)} at {lowest.seconds:.3g} s; "
        f"bound {bytes_text(search.bound)}",
        hint=", or ".join(_ways(search, goal, lowest, reason)),
    )
    error.lowest_peak_bytes = lowest.peak
    error.lower_bound_bytes = search.bound
    return error


def bytes_text(nbytes: int) -> str:
    """Return bytes in the unit that fits; MB is 1e6 bytes.

    Example:
        >>> bytes_text(343_700), bytes_text(51_460_000), bytes_text(24), bytes_text(1_250_000_000)
        ('343.7 kB', '51.5 MB', '24 B', '1.25 GB')
    """
    for unit, size, digits in UNITS:
        if nbytes >= size:
            return f"{nbytes / size:.{digits}f} {unit}"
    return f"{nbytes} B"


def _end(search: Search, goal: Goal, reason: StopReason) -> str:
    """Why there is no plan: a limit that none can keep, or else what ended the search."""
    if goal.memory is not None and goal.memory < search.bound:
        return f"every program needs {bytes_text(search.bound)}"
    if goal.seconds < search.explorer.plain.seconds:
        return f"every program needs {search.explorer.plain.seconds:.3g} s"
    return ENDS[reason]


def _live(search: Search, lowest: Candidate) -> Iterator[str]:
    """The largest tensors at the peak of a plan."""
    timeline = search.timeline(search.point(lowest).plan)
    row = timeline.hotspots[0] if timeline.hotspots else -1
    name_of = search.tables.graph.name_of
    return (f"{name_of(s.buffer.value)} {bytes_text(s.nbytes)}" for s in timeline.alive(row)[:TOP])


def _wanted(goal: Goal) -> str:
    peak = [] if goal.memory is None else [f"a peak of {bytes_text(goal.memory)}"]
    time = [] if goal.latency is None else [f"{goal.latency:.3g} s"]
    return " and ".join([*peak, *time])


def _ways(search: Search, goal: Goal, lowest: Candidate, reason: StopReason) -> Iterator[str]:
    """What may help."""
    if lowest.seconds > goal.seconds:
        needed = search.explorer.plain.seconds
        yield f"allow at least {needed:.4g} s{_times_as_much(needed, goal.seconds)}"
        return
    yield f"allow at least {lowest.peak} bytes"
    if goal.latency is not None:
        yield "more seconds"
    if reason in CUT_SHORT and goal.memory is not None and goal.memory >= search.bound:
        yield "a longer search"


def _times_as_much(needed: float, given: float) -> str:
    """Say a ratio, rounded up; nothing of a limit that is no time at all."""
    if needed > MOST_TIMES * given:
        return ""
    return f", {ceil(round(100 * needed / given, 6)) / 100:.2f} times as much"
