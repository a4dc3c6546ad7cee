"""One graph planned by itself, with or without values that wait on the host."""

from collections.abc import Callable

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.plan.fission.effort import Effort
from peakfold.plan.schedule import offload_search, planner
from peakfold.plan.schedule.found import Found, Progress
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.offload_search import Host


def planned_alone(
    graph: Graph,
    costs: Costs,
    goal: Goal,
    effort: Effort,
    host: Host | None,
    *,
    check: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Found:
    """Plan one graph, in which regions are nodes as any others; its values wait on the host where they may.

    Args:
        graph: the graph.
        costs: of its nodes.
        goal: the limits.
        effort: how long is searched.
        host: what may wait outside the device; None for nothing.
        check: whether every point of the front is simulated once more.
        progress: called after each part of the search; a KeyboardInterrupt from it ends the search.

    Raises:
        InfeasibleError: no plan within the limits was found.
    """
    if host is None:
        return planner.optimize(
            graph,
            costs,
            memory=goal.memory,
            latency=goal.latency,
            time_budget=effort.time_budget,
            iterations=effort.iterations,
            seed=effort.seed,
            progress=progress,
            check=check,
            deadline=effort.deadline,
        )
    return offload_search.optimize(
        graph,
        costs,
        memory=goal.memory,
        latency=goal.latency,
        host_memory=host.memory,
        lends=host.lends,
        time_budget=min(effort.time_budget, effort.deadline.left),
        iterations=effort.iterations,
        seed=effort.seed,
        progress=progress,
    )
