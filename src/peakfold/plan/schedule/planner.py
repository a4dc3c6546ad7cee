"""The planner: the fastest plan within a budget of bytes, or the smallest within a time.

One search serves every budget: see `explore`. It may be stopped at any time, and gives the best plan
that it has, what it spent and why it stopped. With the same seed and number of iterations, and time
enough, it gives the same plan.
"""

from collections.abc import Callable, Sequence

from peakfold.budget import even_ratios
from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.plan.schedule.deadline import Deadline
from peakfold.plan.schedule.found import Found, Front, Point, Progress
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.infeasible import infeasible
from peakfold.plan.schedule.search import Search

__all__ = ["Found", "Front", "Point", "Progress", "optimize", "optimize_front"]


def optimize(
    graph: Graph,
    costs: Costs,
    *,
    memory: int | None = None,
    latency: float | None = None,
    time_budget: float = 60.0,
    iterations: int | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    check: bool = True,
    deadline: Deadline | None = None,
) -> Found:
    """Find the plan that keeps the limits.

    Args:
        graph: the program.
        costs: seconds and hidden bytes of each node.
        memory: most bytes at once; time is then minimized.
        latency: most seconds of a step; without ``memory`` the peak is then minimized. Without either
            the fastest plan is found, of the lowest peak among equals.
        time_budget: seconds after which the search stops.
        iterations: number of proposals after which it stops; the result then depends on the seed only.
        seed: of the random stream.
        progress: called after each part of the search.
        check: whether every point of the front is simulated once more; the best one always is.
        deadline: of what this search is a part of, where that ends before the budget.

    Raises:
        InfeasibleError: no plan within the limits was found.
    """
    goal = Goal(memory, latency)
    targets = () if memory is None else (memory,)
    search = Search(graph, costs, seed, targets, time_budget, iterations, progress, deadline=deadline)
    reason = search.run(goal)
    best = goal.best(search.explorer)
    if best is None:
        raise infeasible(search, goal, reason)
    point = search.point(best)
    return Found(
        plan=point.plan,
        peak_bytes=point.peak_bytes,
        seconds=point.seconds,
        lower_bound_bytes=search.bound,
        stop_reason=reason,
        states=search.explorer.states,
        front=tuple(search.thinned(search.explorer.front(), check)),
        elapsed=search.elapsed,
    )


def optimize_front(
    graph: Graph,
    costs: Costs,
    *,
    budgets: Sequence[int] = (),
    count: int = 20,
    time_budget: float = 60.0,
    iterations: int | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    check: bool = True,
    bound: int | None = None,
    between: int = 0,
    deadline: Deadline | None = None,
) -> Front:
    """Find the fastest plan for each of many budgets in one search; seconds never fall with the budget.

    ``budgets`` are in bytes; without them there are ``count`` in even ratios from the undecided peak to the
    lower bound. ``bound`` is that, where it is known. Up to ``between`` plans that were met besides
    are given too. The rest is as in `optimize`.
    """
    search = Search(graph, costs, seed, tuple(budgets), time_budget, iterations, progress, bound, deadline)
    if not budgets:
        budgets = even_ratios(search.explorer.plain.peak, search.bound, count)
        search.aim(budgets)
    reason = search.sweep(budgets)
    found = [search.explorer.within(budget) for budget in budgets]
    return Front(
        budgets=tuple(budgets),
        points=tuple(None if item is None else search.point(item, check) for item in found),
        lower_bound_bytes=search.bound,
        stop_reason=reason,
        states=search.explorer.states,
        elapsed=search.elapsed,
        between=tuple(search.thinned(search.explorer.front(), check, between)) if between else (),
    )
