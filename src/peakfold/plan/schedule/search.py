"""One search with its clock: annealings until the goal is reached, or time or iterations are spent."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.plan.reorder.orders import least_peak
from peakfold.plan.schedule import dry
from peakfold.plan.schedule.arrays import Tables, tabulate
from peakfold.plan.schedule.bound import peak_bound
from peakfold.plan.schedule.deadline import Deadline
from peakfold.plan.schedule.encode import plan_of
from peakfold.plan.schedule.explore import SLOWEST, Candidate, Explorer
from peakfold.plan.schedule.found import Point, Progress, StopReason, require_peak
from peakfold.plan.schedule.frame import frame
from peakfold.plan.schedule.goal import FrontRank, Goal, Rank, front_rank
from peakfold.plan.schedule.lower import lower_tables
from peakfold.plan.schedule.order import leaves_first
from peakfold.plan.schedule.simulate import simulate_tables
from peakfold.plan.schedule.timeline import Timeline

GIVE_UP = 60
"""Annealings without a better plan after which the search has converged."""
HOPELESS = 6
"""The same where the budget is below the proven bound: only the lowest peak is looked for then."""
BOLD = 4
"""Under a time limit, which of the fruitless annealings in a row are bold."""
DRY = 0.5
"""Part of the time, or of the iterations, after which plans that keep next to nothing are looked at."""
BETTER = 1e-4
"""Smallest relative gain that counts as a better plan."""


class Search:
    """One search over one graph, with its clock.

    Attributes:
        tables: the graph.
        bound: proven lower bound of the peak, bytes.
        explorer: what was found so far.
    """

    def __init__(
        self,
        graph: Graph,
        costs: Costs,
        seed: int,
        budgets: tuple[int, ...],
        time_budget: float,
        iterations: int | None,
        progress: Callable[[Progress], None] | None,
        bound: int | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self.deadline = deadline or Deadline()
        self.now = self.deadline.now
        self.began = self.now()
        self.costs = costs
        self.tables: Tables = tabulate(graph, costs)
        self.bound = peak_bound(self.tables) if bound is None else bound
        self.seed = seed
        self.budgets = budgets
        self.explorer = Explorer(frame(self.tables), seed, budgets)
        self.explorer.compile()
        self.started = self.now()
        self.time_budget = time_budget
        self.iterations = iterations
        self.progress = progress
        self.proposals = 0
        self.is_dry = False

    def aim(self, budgets: Sequence[int]) -> None:
        """Set the budgets, before anything is searched."""
        self.budgets = tuple(budgets)
        self.explorer = Explorer(self.explorer.frame, self.seed, self.budgets)

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self.now() - self.began

    @property
    def slowest(self) -> float:
        """Seconds of the slowest plan that is looked at where no time limit is given."""
        return (dry.SLOWEST if self.is_dry else SLOWEST) * self.explorer.plain.seconds

    @property
    def _searched(self) -> float:
        """Seconds of search: what compiling took on a new machine does not count."""
        return self.now() - self.started

    def run(self, goal: Goal) -> StopReason:
        """Search for one goal until nothing better is found or the time or iterations are spent."""
        if goal.done(self.explorer):
            return "nothing to do"
        try:
            self._begin(min(goal.seconds, self.slowest), lambda explorer: goal.rank(explorer))
            return self._anneal(goal)
        except KeyboardInterrupt:
            return "interrupted"

    def _anneal(self, goal: Goal) -> StopReason:
        score, idle = goal.score(goal.best(self.explorer)), 0
        for target in goal.targets(self.explorer, self.bound):
            stop = self._spent()
            hopeless = goal.memory is not None and goal.memory < self.bound
            ends = stop is not None or idle >= (HOPELESS if hopeless else GIVE_UP)
            wanted = score == np.inf or goal.by_bytes
            if wanted and (ends or self._share() >= DRY) and self._dry():
                now = goal.score(goal.best(self.explorer))
                if now < score:
                    score, idle, ends = now, 0, stop is not None
            if ends:
                return stop or "converged"
            bold = goal.latency is None or idle % BOLD == BOLD - 1
            self._part(target, min(goal.seconds, self.slowest), goal.best(self.explorer), bold)
            now = goal.score(goal.best(self.explorer))
            idle = 0 if now < score * (1 - BETTER) else idle + 1
            score = min(score, now)
        return "converged"

    def sweep(self, budgets: Sequence[int]) -> StopReason:
        """Search for all budgets in turn, until a round over them brings nothing."""
        ceiling = sorted((b for b in budgets if b < self.explorer.plain.peak), reverse=True)
        try:
            self._begin(self.slowest, lambda explorer: front_rank(explorer, budgets))
            rounds = len(ceiling) * GIVE_UP
            for idle in range(rounds):
                stop = self._spent()
                if stop or self._share() >= DRY or idle >= DRY * rounds:
                    self._dry()
                if stop:
                    return stop
                unmet = ceiling[-1] if idle % 2 and self.explorer.within(ceiling[-1]) is None else None
                self._part(unmet or ceiling[idle // 2 % len(ceiling)], self.slowest, None)
        except KeyboardInterrupt:
            return "interrupted"
        return "converged" if ceiling else "nothing to do"

    def _begin(self, slowest: float, rank: Callable[[Explorer], Rank | FrontRank]) -> None:
        """Descend in the program's own order and in others, and go on in the best one."""
        self.explorer.descend(slowest, self._is_late)
        for way in (leaves_first, least_peak):
            order = () if self._is_late() else way(self.explorer.frame)
            if not order:
                continue
            other = Explorer(frame(self.tables, order), self.seed, self.budgets, order)
            other.descend(slowest, self._is_late)
            if rank(other) < rank(self.explorer):
                other.kept.tried[0] += self.explorer.states
                self.explorer = other

    def _dry(self) -> bool:
        """Look at plans that keep next to nothing, once, while there is time; return whether now."""
        if self.is_dry or self._is_late():
            return False
        self.is_dry = True
        self.explorer.dry()
        return True

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
        return "time" if self._searched >= self.time_budget or self.deadline.is_over else None

    def _is_late(self) -> bool:
        """Whether what this is a part of must end: the budget of this search alone cuts no descent short."""
        return self.deadline.is_over

    def point(self, found: Candidate, check: bool = True) -> Point:
        """Return the plan of a candidate, lowered and simulated: it must come to what was decoded."""
        plan = plan_of(self.explorer.frame, found.modes.tolist(), self.explorer.order)
        if not check:
            return Point(found.peak, found.seconds, plan)
        timeline = self.timeline(plan)
        require_peak(found.peak, timeline.peak)
        return Point(timeline.peak, found.seconds, plan)

    def timeline(self, plan: Plan) -> Timeline:
        """Return what a plan comes to in the simulator."""
        return simulate_tables(self.tables, lower_tables(self.tables, plan), self.costs.link)

    def thinned(self, front: Sequence[Candidate], check: bool = True, most: int = 24) -> Iterator[Point]:
        """Yield points of a front, evenly thinned."""
        picks = sorted({int(i) for i in np.linspace(0, len(front) - 1, min(most, len(front)))})
        return (self.point(front[i], check) for i in picks)
