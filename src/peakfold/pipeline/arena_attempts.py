"""An arena within a budget: plan, lay out, and plan again with fewer live bytes, until it is."""

from dataclasses import dataclass, field, replace

from peakfold.errors import InfeasibleError
from peakfold.ir.plan import Plan
from peakfold.pipeline import arena, arena_first_run, plan_cache
from peakfold.pipeline.reporting import Facts
from peakfold.pipeline.run import Run
from peakfold.pipeline.search import Bounds, kind_of
from peakfold.pipeline.tried import Tried, try_once

ATTEMPTS = 4
LOWEST_ATTEMPTS = 3
LOWEST_SECONDS = 10.0
"""Of searching for the plan whose arena a refusal names."""


def try_in_arena(run: Run, facts: Facts, bounds: Bounds) -> Tried:
    """Return a program in an arena within the budget.

    A refusal names an arena that was laid out, and its plan is kept: with that budget it is found again.

    Raises:
        InfeasibleError: none was found.
    """
    why = arena.why_predicted(run.task, run.runnable, holding=bool(facts.held))
    run.note(*([why] if why else []))
    attempts = _Attempts(run, facts, not why)
    if run.asked.plan is not None:
        found, refused = attempts.fitting(attempts.placed(try_once(run, facts, bounds))), None
    else:
        found, refused = attempts.tightened(bounds)
        found = found or attempts.remembered() or attempts.lowest(bounds, refused)
    if found is not None:
        return found
    attempts.remember()
    raise attempts.refusal(refused)


@dataclass
class _Attempts:
    """What was tried so far.

    Attributes:
        run: the optimization.
        facts: what is known of it.
        runs: whether programs run in their arena.
        least: the program of the smallest arena.
        seen: plans that were laid out.
    """

    run: Run
    facts: Facts
    runs: bool
    least: Tried | None = None
    seen: set[Plan] = field(default_factory=set)

    @property
    def _capacity(self) -> int:
        return self.facts.arena_budget

    @property
    def _key(self) -> str:
        asked = self.run.asked
        kind = (asked.latency, asked.arena_holds, *kind_of(asked, self.facts.costs))
        return plan_cache.key_of(self.facts.captured.graph, self.facts.costs, ("least arena", kind))

    def tightened(self, bounds: Bounds) -> tuple[Tried | None, InfeasibleError | None]:
        """Search with ever fewer live bytes; also return the word of the search that found nothing."""
        for _ in range(ATTEMPTS):
            try:
                tried = try_once(self.run, self.facts, bounds)
            except InfeasibleError as error:
                if not error.lowest_peak_bytes:
                    raise
                return None, error
            seen = set(self.seen)
            placed = self.placed(tried)
            if self.fitting(placed) is not None:
                return placed, None
            bounds = replace(bounds, memory=self._tighter(placed, bounds, placed.program.plan in seen))
        return None, None

    def remembered(self) -> Tried | None:
        """Lay out the plan that an earlier refusal named the arena of."""
        run, facts = self.run, self.facts
        kept, fault = plan_cache.load(run.options.cache / "plans", self._key, facts.captured.graph)
        run.note(*([] if fault is None else [fault]))
        if kept is None or kept.plan in self.seen:
            return None
        program = run.program(facts.captured, facts.costs, kept.plan, facts.budget)
        return self.fitting(self.placed(Tried(program, kept, facts)))

    def lowest(self, bounds: Bounds, refused: InfeasibleError | None) -> Tried | None:
        """Lay out a plan of the lowest peak that the search reached."""
        if refused is None:
            return None
        asked, memory = self.run.asked, refused.lowest_peak_bytes
        run = replace(self.run, asked=replace(asked, time_budget=min(asked.time_budget, LOWEST_SECONDS)))
        for _ in range(LOWEST_ATTEMPTS):
            try:
                tried = try_once(run, self.facts, replace(bounds, memory=memory))
            except InfeasibleError as error:
                memory = max(memory + memory // 64, error.lowest_peak_bytes)
            else:
                return self.fitting(self.placed(tried))
        return None

    def remember(self) -> None:
        """Keep the plan of the smallest arena."""
        if self.least is None or self.run.asked.plan is not None:
            return
        folder, graph = self.run.options.cache / "plans", self.facts.captured.graph
        fault = plan_cache.store(folder, self._key, graph, self.least.kept)
        self.run.note(*([] if fault is None else [fault]))

    def refusal(self, refused: InfeasibleError | None) -> InfeasibleError:
        """Say what was found instead."""
        resident, capacity = self.facts.resident, self._capacity
        if self.least is None:
            assert refused is not None
            return arena.restated(refused, capacity, resident)
        layout, kept = self.least.program.layout, self.least.kept
        assert layout is not None
        bound = kept.lower_bound_bytes
        if refused is not None and not self.run.asked.fission:  # else it is of programs with these regions
            bound = max(bound, refused.lower_bound_bytes)
        given = self.run.asked.plan is not None
        proved = bound - resident > capacity and not self.run.asked.fission
        return arena.over(layout, capacity, max(bound - resident, 0), proved=proved, given=given)

    def placed(self, tried: Tried) -> Tried:
        """Return a laid out program; where that is over the budget, of another order if that is smaller."""
        found = _laid_out(self.run, tried, self.runs)
        if self.runs and arena_first_run.is_due(self.run.task):
            found = self._run_once(found)
        self.seen |= {tried.program.plan, found.program.plan}
        if self.least is None or found.program.peak < self.least.program.peak:
            self.least = found
        return found

    def _run_once(self, placed: Tried) -> Tried:
        """Return a program that was run in its arena and did as planned, else one without; and say why."""
        why = arena_first_run.why_not(self.run.task, placed.program)
        if not why:
            return placed
        self.run.note(f"the program runs without its arena: in its first run {why}")
        self.runs = False
        return _laid_out(self.run, replace(placed, program=placed.program.planned_only()), runs=False)

    def fitting(self, placed: Tried) -> Tried | None:
        """Return what is within the budget, else None."""
        return placed if placed.program.peak <= self.facts.resident + self._capacity else None

    def _tighter(self, placed: Tried, bounds: Bounds, known: bool) -> int:
        """Return fewer live bytes for the next search: by as many as the arena is over."""
        assert bounds.memory is not None
        memory = bounds.memory - (placed.program.peak - self.facts.resident - self._capacity)
        return min(memory, placed.program.timeline.peak - 1) if known else memory


def _laid_out(run: Run, tried: Tried, runs: bool) -> Tried:
    """Place what a program allocates; where that is over the budget, try other orders of its steps."""
    facts, seed = tried.facts, run.asked.seed
    capacity = facts.arena_budget
    with run.stages("arena"):
        program = arena.laid_out(run.task, tried.program, capacity, facts.held, run=runs, seed=seed)
        placed = replace(tried, program=program)
        if program.peak <= facts.resident + capacity or run.asked.plan is not None:
            return placed
        assert program.layout is not None
        plan = arena.reordered(program, capacity - program.layout.held_room, seed)
        if plan is None:
            return placed
        other = run.program(facts.captured, facts.costs, plan, facts.budget)
        other = arena.laid_out(run.task, other, capacity, facts.held, run=runs, seed=seed)
    if other.peak >= program.peak:
        return placed
    return replace(tried, program=other, kept=replace(tried.kept, plan=plan))
