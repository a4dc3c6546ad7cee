"""One plan: searched for, lowered and emitted, with what is known about it."""

from dataclasses import dataclass, field, replace

from peakfold.bridge.runtime.verify import Observed
from peakfold.errors import InfeasibleError
from peakfold.ir.plan import Plan
from peakfold.ir.text import parse_plan, print_plan
from peakfold.pipeline import arena, prove
from peakfold.pipeline.plan_cache import Kept
from peakfold.pipeline.program import Program
from peakfold.pipeline.proof_cache import Proof, Times
from peakfold.pipeline.reporting import Facts
from peakfold.pipeline.repriced import Repriced
from peakfold.pipeline.request import Request
from peakfold.pipeline.run import Run
from peakfold.pipeline.search import Bounds, find, unsearched
from peakfold.plan.fission.derive import Splitter
from peakfold.plan.schedule.goal import Goal
from peakfold.report.model import Equality


@dataclass(frozen=True)
class Tried:
    """A program, what it was measured at, and what the search said."""

    program: Program
    kept: Kept
    facts: Facts
    seen: Observed | None = None
    figures: prove.Figures = field(default_factory=prove.Figures)
    times: Times | None = None
    key: str = ""
    known: Proof | None = None
    equality: Equality = field(default_factory=Equality)

    def cost(self, asked: Request) -> float:
        """What is least for the best program: time within a budget of bytes, else bytes within a time."""
        least = self.figures.peak_bytes if asked.memory is None else self.figures.cpu_seconds
        return float(least or 0)


def try_once(run: Run, facts: Facts, bounds: Bounds, prices: Repriced | None = None) -> Tried:
    """Search for a plan within bounds, or take the given one, and emit its program.

    Args:
        run: the optimization.
        facts: what is known of it.
        bounds: what the plan must keep to.
        prices: what the search counts with instead of the profile; None for that.

    Raises:
        InfeasibleError: none was found.
    """
    graph = facts.captured.graph
    if run.asked.plan is not None:
        kept = unsearched(parse_plan(run.asked.plan, graph, Splitter()), "a plan was given")
    else:
        kept = _found(run, facts, bounds) if prices is None else _found_at(run, facts, bounds, prices)
    if facts.in_arena:
        arena.require_kept(kept.plan, graph)
    run.stages.dump("plan.txt", print_plan(kept.plan, graph, splitter=Splitter()))
    program = run.program(facts.captured, facts.costs, kept.plan, facts.budget)
    if run.asked.source is not None:
        program = replace(program, source=run.asked.source)
    run.stages.dump("step.py", program.source)
    return Tried(program, kept, facts)


def _found(run: Run, facts: Facts, bounds: Bounds) -> Kept:
    """Search; a plan that was known before is taken where it keeps the limits and nothing better is found."""
    graph, known = facts.captured.graph, facts.known
    goal = Goal(bounds.memory, bounds.seconds)
    held = known is not None and goal.keeps(known.peak_bytes, known.seconds)
    try:
        with run.stages("search"):
            kept, faults = find(graph, facts.costs, bounds, facts.asked, run.options, run.stages, run.costs)
    except InfeasibleError as error:
        if known is None or not held:
            raise
        return Kept(known.plan, error.lower_bound_bytes, "known before", 0)
    run.note(*faults)
    if known is None or not held or known.plan == kept.plan:
        return kept
    line = run.program(facts.captured, facts.costs, kept.plan, facts.budget).timeline
    best = goal.order(known.peak_bytes, known.seconds) < goal.order(line.peak, line.seconds)
    return replace(kept, plan=known.plan) if best else kept


def _found_at(run: Run, facts: Facts, bounds: Bounds, prices: Repriced) -> Kept:
    """Search with other prices than those of the profile."""
    graph, costs_of = facts.captured.graph, prices.over(run.costs)
    costs = prices.costs(graph, facts.costs)
    with run.stages("search"):
        kept, faults = find(graph, costs, bounds, facts.asked, run.options, run.stages, costs_of)
    run.note(*faults)
    return kept


def why_unsplit(asked: Request, plan: Plan) -> tuple[str, ...]:
    """Say so where parts were asked for and nothing is done in parts.

    Example:
        >>> from peakfold.pipeline.request import request
        >>> why_unsplit(request(None, None, 0, None, 0, "eager", True, fission=True), Plan(""))
        ('nothing is done in parts: the time budget is 0, and plans with parts are what a search finds',)
    """
    if not asked.fission or asked.plan is not None or plan.regions:
        return ()
    if not asked.time_budget and asked.iterations is None:
        why = "the time budget is 0, and plans with parts are what a search finds"
    else:
        why = "of the plans that were found, the best is without"
    return (f"nothing is done in parts: {why}",)
