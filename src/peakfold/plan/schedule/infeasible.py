"""The words for a search that found no plan within the limits."""

from peakfold.errors import InfeasibleError
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.search import Search

MB = 1e6
TOP = 6
"""How many tensors an InfeasibleError names."""


def infeasible(search: Search, goal: Goal) -> InfeasibleError:
    """Say the lowest peak found, what is live there, and the bound."""
    lowest = search.explorer.lowest(goal.seconds) or search.explorer.lowest()
    assert lowest is not None
    timeline = search.timeline(search.point(lowest).plan)
    row = timeline.hotspots[0] if timeline.hotspots else -1
    graph = search.tables.graph
    live = [f"{graph.name_of(s.buffer.value)} {s.nbytes / MB:.1f} MB" for s in timeline.alive(row)[:TOP]]
    wanted = [] if goal.memory is None else [f"a peak of {goal.memory / MB:.1f} MB"]
    wanted += [] if goal.latency is None else [f"{goal.latency:.4f} s"]
    error = InfeasibleError(
        stage="plan",
        what="no program within the budget was found",
        where=f"largest at the lowest peak: {', '.join(live)}",
        expected=" and ".join(wanted),
        got=f"lowest peak {lowest.peak / MB:.1f} MB at {lowest.seconds:.4f} s; bound {search.bound / MB:.1f} "
        "MB",
        hint=f"allow at least {lowest.peak} bytes, or a longer time",
    )
    error.lowest_peak_bytes = lowest.peak
    error.lower_bound_bytes = search.bound
    return error
