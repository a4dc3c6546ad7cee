"""The planner: the fastest plan within a budget of bytes, or the smallest within a time.

One search serves every budget: see `explore`. It may be stopped at any time, and gives the best plan
that it has, what it spent and why it stopped. With the same seed and number of iterations, and time
enough, it gives the same plan.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

import numpy as np

from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError, PlanError
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.plan.schedule.arrays import Tables, tabulate
from peakfold.plan.schedule.bound import peak_bound
from peakfold.plan.schedule.encode import plan_of
from peakfold.plan.schedule.explore import SLOWEST, Candidate, Explorer
from peakfold.plan.schedule.frame import frame
from peakfold.plan.schedule.lower import lower_tables
from peakfold.plan.schedule.order import leaves_first
from peakfold.plan.schedule.simulate import simulate_tables
from peakfold.plan.schedule.timeline import Timeline

StopReason = Literal["nothing to do", "converged", "iterations", "time", "interrupted"]

Rank = tuple[float, float]

MB = 1e6
GIVE_UP = 60
"""Annealings without a better plan after which the search has converged."""
HOPELESS = 6
"""The same where the budget is below the proven bound: only the lowest peak is looked for then."""
BOLD = 4
"""Under a time limit, which of the fruitless annealings in a row are bold."""
BETTER = 1e-4
"""Smallest relative gain that counts as a better plan."""
TOP = 6
"""How many tensors an InfeasibleError names."""


@dataclass(frozen=True, slots=True)
class Point:
    """A plan and what it comes to.

    Attributes:
        peak_bytes: predicted most bytes at once.
        seconds: predicted time of one step.
        plan: the decisions.
    """

    peak_bytes: int
    seconds: float
    plan: Plan


@dataclass(frozen=True)
class Found:
    """What a search ends with.

    Attributes:
        plan: the decisions.
        peak_bytes: predicted most bytes at once.
        seconds: predicted time of one step.
        lower_bound_bytes: a proven lower bound of the peak of every plan.
        stop_reason: why the search ended.
        states: number of plans that were decoded.
        front: plans met on the way, from the highest peak to the lowest: each is the fastest found within
            its peak, so that seconds rise.
        elapsed: seconds that planning took.
    """

    plan: Plan
    peak_bytes: int
    seconds: float
    lower_bound_bytes: int
    stop_reason: StopReason
    states: int
    front: tuple[Point, ...]
    elapsed: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands: given to the callback after each of its parts.

    Attributes:
        states: number of plans decoded.
        elapsed: seconds since it began.
        share: how much of the time or the iterations is used, 0 to 1.
        peak_bytes, seconds: of the best plan so far; None while no plan keeps the limits.
    """

    states: int
    elapsed: float
    share: float
    peak_bytes: int | None
    seconds: float | None


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

    Raises:
        InfeasibleError: no plan within the limits was found.
    """
    goal = _Goal(memory, latency)
    run = _Run(graph, costs, seed, () if memory is None else (memory,), time_budget, iterations, progress)
    reason = run.search(goal)
    best = goal.best(run.explorer)
    if best is None:
        raise _infeasible(run, goal)
    point = run.point(best)
    return Found(
        plan=point.plan,
        peak_bytes=point.peak_bytes,
        seconds=point.seconds,
        lower_bound_bytes=run.bound,
        stop_reason=reason,
        states=run.explorer.states,
        front=tuple(run.thinned(run.explorer.front())),
        elapsed=run.elapsed,
    )


@dataclass(frozen=True)
class Front:
    """One plan for each budget.

    Attributes:
        budgets: bytes, as asked.
        points: the fastest plan found within each; None where none was found.
        lower_bound_bytes, stop_reason, states, elapsed: as in `Found`.
    """

    budgets: tuple[int, ...]
    points: tuple[Point | None, ...]
    lower_bound_bytes: int
    stop_reason: StopReason
    states: int
    elapsed: float


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
) -> Front:
    """Find the fastest plan for each of many budgets in one search; seconds never fall with the budget.

    ``budgets`` are in bytes; without them there are ``count`` in even ratios from the undecided peak to the
    lower bound. The rest is as in `optimize`.
    """
    run = _Run(graph, costs, seed, tuple(budgets), time_budget, iterations, progress)
    if not budgets:
        budgets = [int(b) for b in np.geomspace(run.explorer.plain.peak, run.bound, count)]
        run = _Run(graph, costs, seed, tuple(budgets), time_budget, iterations, progress)
    reason = run.sweep(budgets)
    found = [run.explorer.within(budget) for budget in budgets]
    return Front(
        budgets=tuple(budgets),
        points=tuple(None if item is None else run.point(item) for item in found),
        lower_bound_bytes=run.bound,
        stop_reason=reason,
        states=run.explorer.states,
        elapsed=run.elapsed,
    )


@dataclass(frozen=True, slots=True)
class _Goal:
    memory: int | None
    latency: float | None

    @property
    def seconds(self) -> float:
        return np.inf if self.latency is None else self.latency

    def best(self, explorer: Explorer) -> Candidate | None:
        if self.memory is not None:
            return explorer.within(self.memory, self.seconds)
        if self.latency is not None:
            return explorer.lowest(self.latency)
        return explorer.within(explorer.plain.peak)

    def score(self, best: Candidate | None) -> float:
        """What is minimized; infinite while the limits are not kept."""
        if best is None:
            return np.inf
        return float(best.peak) if self.memory is None and self.latency is not None else best.seconds

    def rank(self, explorer: Explorer) -> Rank:
        """How good a search stands; less is better."""
        lowest = explorer.lowest(self.seconds)
        return (self.score(self.best(explorer)), np.inf if lowest is None else lowest.peak)

    def done(self, explorer: Explorer) -> bool:
        """Whether nothing can be gained: the plan without recomputation keeps the limits."""
        plain = explorer.plain
        slow = plain.seconds > self.seconds
        return (
            not slow
            and (self.latency is None or self.memory is not None)
            and (self.memory is None or plain.peak <= self.memory)
        )

    def targets(self, explorer: Explorer, bound: int) -> Iterator[int]:
        """Yield the target of each annealing: the budget, and often one beside it."""
        for share in cycle((1.0, 0.97, 1.0, 0.9, 1.0, 1.05)):
            if self.memory is not None:
                yield int(self.memory * share) if share >= 1 or self.best(explorer) else self.memory
            else:
                best = self.best(explorer)
                peak = explorer.plain.peak if best is None else best.peak
                yield max(bound, int(peak * min(share, 1.0) * 0.99))


class _Run:
    """One search with its clock."""

    def __init__(
        self,
        graph: Graph,
        costs: Costs,
        seed: int,
        budgets: tuple[int, ...],
        time_budget: float,
        iterations: int | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.began = time.monotonic()
        self.costs = costs
        self.tables: Tables = tabulate(graph, costs)
        self.bound = peak_bound(self.tables)
        self.seed = seed
        self.budgets = budgets
        self.explorer = Explorer(frame(self.tables), seed, budgets)
        self.explorer.compile()
        self.started = time.monotonic()
        self.time_budget = time_budget
        self.iterations = iterations
        self.progress = progress
        self.proposals = 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    @property
    def slowest(self) -> float:
        """Seconds of the slowest plan that is looked at where no time limit is given."""
        return SLOWEST * self.explorer.plain.seconds

    @property
    def _searched(self) -> float:
        """Seconds of search: what compiling took on a new machine does not count."""
        return time.monotonic() - self.started

    def search(self, goal: _Goal) -> StopReason:
        if goal.done(self.explorer):
            return "nothing to do"
        slowest = min(goal.seconds, self.slowest)
        try:
            self._begin(slowest, lambda explorer: goal.rank(explorer))
            return self._anneal(goal, slowest)
        except KeyboardInterrupt:
            return "interrupted"

    def _anneal(self, goal: _Goal, slowest: float) -> StopReason:
        score, idle = goal.score(goal.best(self.explorer)), 0
        for target in goal.targets(self.explorer, self.bound):
            stop = self._spent()
            hopeless = goal.memory is not None and goal.memory < self.bound
            if stop or idle >= (HOPELESS if hopeless else GIVE_UP):
                return stop or "converged"
            bold = goal.latency is None or idle % BOLD == BOLD - 1
            self._part(target, slowest, goal.best(self.explorer), bold)
            now = goal.score(goal.best(self.explorer))
            idle = 0 if now < score * (1 - BETTER) else idle + 1
            score = min(score, now)
        return "converged"

    def sweep(self, budgets: Sequence[int]) -> StopReason:
        """Search for all budgets in turn, until a round over them brings nothing."""
        slowest = self.slowest
        ceiling = sorted((b for b in budgets if b < self.explorer.plain.peak), reverse=True)
        try:
            self._begin(slowest, lambda explorer: _ranks(explorer, budgets))
            for idle in range(len(ceiling) * GIVE_UP):
                stop = self._spent()
                if stop:
                    return stop
                unmet = ceiling[-1] if idle % 2 and self.explorer.within(ceiling[-1]) is None else None
                self._part(unmet or ceiling[idle // 2 % len(ceiling)], slowest, None)
        except KeyboardInterrupt:
            return "interrupted"
        return "converged" if ceiling else "nothing to do"

    def _begin(self, slowest: float, rank: Callable[[Explorer], Rank]) -> None:
        """Descend in the program's own order and in another, and go on in the better one."""
        self.explorer.descend(slowest)
        order = leaves_first(self.explorer.frame)
        other = Explorer(frame(self.tables, order), self.seed, self.budgets, order)
        other.descend(slowest)
        if rank(other) < rank(self.explorer):
            other.kept.tried[0] += self.explorer.states
            self.explorer = other

    def _part(self, target: int, slowest: float, best: Candidate | None, bold: bool = True) -> None:
        left = None if self.iterations is None else self.iterations - self.proposals
        self.proposals += self.explorer.anneal(target, slowest, left, bold)
        if self.progress is not None:
            peak, seconds = (None, None) if best is None else (best.peak, best.seconds)
            self.progress(Progress(self.explorer.states, self.elapsed, self._share(), peak, seconds))

    def _share(self) -> float:
        if self.iterations is not None:
            return self.proposals / max(self.iterations, 1)
        return min(1.0, self._searched / self.time_budget) if self.time_budget > 0 else 1.0

    def _spent(self) -> Literal["iterations", "time"] | None:
        if self.iterations is not None and self.proposals >= self.iterations:
            return "iterations"
        return "time" if self._searched >= self.time_budget else None

    def point(self, found: Candidate) -> Point:
        """Return the plan of a candidate, lowered and simulated: it must come to what was decoded."""
        plan = plan_of(self.explorer.frame, found.modes.tolist(), self.explorer.order)
        timeline = self.timeline(plan)
        if timeline.peak != found.peak:
            raise PlanError(
                stage="plan",
                what="a plan does not come to what the search found",
                expected=f"a peak of {found.peak} bytes",
                got=f"{timeline.peak} bytes",
                hint="this is a fault of peakfold: please report it with the graph",
            )
        return Point(timeline.peak, found.seconds, plan)

    def timeline(self, plan: Plan) -> Timeline:
        return simulate_tables(self.tables, lower_tables(self.tables, plan), self.costs.link)

    def thinned(self, front: Sequence[Candidate], most: int = 24) -> Iterator[Point]:
        """Yield points of a front, evenly thinned."""
        picks = sorted({int(i) for i in np.linspace(0, len(front) - 1, min(most, len(front)))})
        return (self.point(front[i]) for i in picks)


def _ranks(explorer: Explorer, budgets: Sequence[int]) -> Rank:
    """How many budgets a search cannot keep, and the seconds of those that it can."""
    found = [explorer.within(budget) for budget in budgets]
    return (float(found.count(None)), sum(item.seconds for item in found if item is not None))


def _infeasible(run: _Run, goal: _Goal) -> InfeasibleError:
    """Say the lowest peak found, what is live there, and the bound."""
    lowest = run.explorer.lowest(goal.seconds) or run.explorer.lowest()
    assert lowest is not None
    timeline = run.timeline(run.point(lowest).plan)
    row = timeline.hotspots[0] if timeline.hotspots else -1
    graph = run.tables.graph
    live = [f"{graph.name_of(s.buffer.value)} {s.nbytes / MB:.1f} MB" for s in timeline.alive(row)[:TOP]]
    wanted = [] if goal.memory is None else [f"a peak of {goal.memory / MB:.1f} MB"]
    wanted += [] if goal.latency is None else [f"{goal.latency:.4f} s"]
    error = InfeasibleError(
        stage="plan",
        what="no program within the budget was found",
        where=f"largest at the lowest peak: {', '.join(live)}",
        expected=" and ".join(wanted),
        got=f"lowest peak {lowest.peak / MB:.1f} MB at {lowest.seconds:.4f} s; bound {run.bound / MB:.1f} MB",
        hint=f"allow at least {lowest.peak} bytes, or a longer time",
    )
    error.lowest_peak_bytes = lowest.peak
    error.lower_bound_bytes = run.bound
    return error
