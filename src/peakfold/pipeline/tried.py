"""One plan: searched for, lowered and emitted, with what is known about it."""

from dataclasses import dataclass, field

from peakfold.bridge.runtime.verify import Observed
from peakfold.ir.text import parse_plan, print_plan
from peakfold.pipeline import arena, prove
from peakfold.pipeline.plan_cache import Kept
from peakfold.pipeline.program import Program
from peakfold.pipeline.proof_cache import Proof, Times
from peakfold.pipeline.reporting import Facts
from peakfold.pipeline.request import Request
from peakfold.pipeline.run import Run
from peakfold.pipeline.search import Bounds, find, unsearched
from peakfold.plan.fission.derive import Splitter
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


def try_once(run: Run, facts: Facts, bounds: Bounds) -> Tried:
    """Search for a plan within bounds, or take the given one, and emit its program.

    Raises:
        InfeasibleError: none was found.
    """
    graph = facts.captured.graph
    if run.asked.plan is not None:
        kept = unsearched(parse_plan(run.asked.plan, graph, Splitter()), "a plan was given")
    else:
        with run.stages("search"):
            kept, faults = find(graph, facts.costs, bounds, run.asked, run.options, run.stages, run.costs)
        run.note(*faults)
    if facts.in_arena:
        arena.require_kept(kept.plan, graph)
    run.stages.dump("plan.txt", print_plan(kept.plan, graph, splitter=Splitter()))
    program = run.program(facts.captured, facts.costs, kept.plan, facts.budget)
    run.stages.dump("step.py", program.source)
    return Tried(program, kept, facts)
