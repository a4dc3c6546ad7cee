"""peakfold's programs for one workload: searched once for each constraint."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from peakfold.bench.settings import Settings
from peakfold.bridge.capture import Captured
from peakfold.bridge.runtime.profile import profile
from peakfold.cost.cache import FILE_NAME, CostCache
from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.options import from_environment
from peakfold.pipeline.arena import laid_out, over
from peakfold.pipeline.program import Program, emit_plan
from peakfold.pipeline.quicker import quickest
from peakfold.pipeline.task import Task
from peakfold.plan.schedule import planner
from peakfold.report.progress import Progress

SPARES = (1.02, 0.99, 0.98, 0.95)
"""Beside the plan for a time limit, one for each of these multiples of it runs: prediction is not exact."""
CLOSE = (0.995, 0.985, 0.96)
"""The same within eager's own time, where the program without recomputation has little to spare. The last
leaves more than predictions are to be off by."""
ATTEMPTS = 4
"""Searches for an arena within a budget, each with fewer live bytes than the one before."""


@dataclass(frozen=True)
class Planned:
    """A program for a constraint.

    Attributes:
        constraint: in words.
        program: what was found.
        search_seconds: of the search that found it; None for the program without recomputation.
        lower_bound_bytes: proven.
    """

    constraint: str
    program: Program
    search_seconds: float | None = None
    lower_bound_bytes: int | None = None


class Plans:
    """Captured and costed once; searched for one constraint after the other.

    Attributes:
        captured: the program.
        costs: of its nodes.
        plain: the program without recomputation.
        correction: measured over predicted time, both relative to eager; 1 until it is known.
    """

    def __init__(self, task: Task, settings: Settings, progress: Progress) -> None:
        self.correction = 1.0
        self._task = task
        self._settings = settings
        self._progress = progress
        progress("capture", 0.0)
        raw = task.capture()
        self._eager_seconds = sum(self._costs_of(raw.graph).seconds.values())
        self.captured: Captured = raw
        if settings.rewrite:
            rewritten = quickest(raw.graph, self._costs_of, least=True)(raw.graph)
            self.captured = replace(raw, graph=rewritten)
        self.costs: Costs = self._costs_of(self.captured.graph)
        self.plain = self._program(Plan(self.captured.graph.digest))

    def _costs_of(self, graph: Graph) -> Costs:
        cache = CostCache(from_environment().cache / FILE_NAME)
        return profile(graph, cache, self._settings.threads, self._profiled)

    def _profiled(self, done: int, total: int) -> None:
        self._progress("profile", done / max(total, 1), f"{done} of {total} operators")

    def _program(self, plan: Plan, budget: int | None = None) -> Program:
        """Return the program of a plan; in its arena where it is to run there."""
        program = emit_plan(self.captured, plan, self.costs)
        if not self._settings.arena:
            return program
        capacity = None if budget is None else budget - program.timeline.resident
        return laid_out(self._task, program, capacity, run=True, seed=self._settings.seed)

    def ratio(self, program: Program) -> float:
        """Return the predicted time over that of the program without recomputation."""
        return program.timeline.seconds / self.plain.timeline.seconds

    def uncorrected(self, program: Program) -> float:
        """Return the predicted time over that of the operators that eager runs."""
        return program.timeline.seconds / self._eager_seconds

    def within_bytes(self, constraint: str, budget: int) -> Sequence[Planned]:
        """Return the fastest program within a budget; an arena counts whole there.

        Raises:
            InfeasibleError: there is none.
        """
        memory = budget
        for _ in range(ATTEMPTS):
            found = self._search(constraint, memory=memory)
            planned = self._planned(constraint, found, found.plan, budget)
            program = planned.program
            if program.peak <= budget:
                return (planned,)
            memory = program.timeline.peak - (program.peak - budget)
        assert program.layout is not None
        resident = program.timeline.resident
        bound = max(found.lower_bound_bytes - resident, 0)
        raise over(program.layout, budget - resident, bound, proved=False, given=False)

    def within_time(self, constraint: str, limit: float, spares: Sequence[float] = ()) -> Sequence[Planned]:
        """Return the smallest program within a limit of the time over eager's.

        Args:
            constraint: in words.
            limit: 1.10 for at most 10 % slower.
            spares: also the smallest met within each of these multiples of the limit.

        Raises:
            InfeasibleError: there is none.
        """
        seconds = limit * self.plain.timeline.seconds / self.correction
        found = self._search(constraint, latency=seconds)
        plans = [self._planned(constraint, found, found.plan)]
        for share in spares:
            quicker = [point for point in found.front if point.seconds <= share * seconds]
            if quicker:
                least = min(quicker, key=lambda point: point.peak_bytes)
                plans.append(self._planned(f"{constraint} {100 * (share - 1):+.3g}%", found, least.plan))
        return plans

    def _search(
        self, constraint: str, memory: int | None = None, latency: float | None = None
    ) -> planner.Found:
        return planner.optimize(
            self.captured.graph,
            self.costs,
            memory=memory,
            latency=latency,
            time_budget=self._settings.time_budget,
            seed=self._settings.seed,
            progress=lambda state: self._progress("search", state.share, constraint),
        )

    def _planned(
        self, constraint: str, found: planner.Found, plan: Plan, budget: int | None = None
    ) -> Planned:
        return Planned(constraint, self._program(plan, budget), found.elapsed, found.lower_bound_bytes)


Search = Callable[[], Sequence[Planned]]
