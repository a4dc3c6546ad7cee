"""Search, run what was found, and search again with tighter bounds until what was asked for holds."""

from dataclasses import dataclass, field, replace
from datetime import date

from peakfold.bridge.runtime.verify import Observed
from peakfold.errors import InfeasibleError
from peakfold.ir.plan import Plan
from peakfold.ir.text import parse_plan, print_plan
from peakfold.pipeline import arena, proof_cache, prove
from peakfold.pipeline.plan_cache import Kept
from peakfold.pipeline.program import Program
from peakfold.pipeline.proof_cache import Proof, Times
from peakfold.pipeline.reporting import Facts
from peakfold.pipeline.request import Request
from peakfold.pipeline.run import Run
from peakfold.pipeline.search import Bounds, find, unsearched
from peakfold.plan.fission.derive import Splitter
from peakfold.report.model import Equality
from peakfold.report.words import asked

ATTEMPTS = 4
MARGIN = 0.995
SLACK = 0.98
SLACK_TRIES = 2


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


def within(run: Run, facts: Facts, plain: Program) -> Tried:
    """Search, run, and search again with tighter bounds until what was measured is within what was asked."""
    bounds = Bounds(facts.budget, _seconds_limit(run, plain, _calibration(run, facts, plain)))
    tries: list[Tried] = []
    good: list[Tried] = []
    for attempt in range(ATTEMPTS if run.asked.plan is None else 1):
        if attempt:
            run.stages.progress("search", 0.0, f"{attempt} measured, once more with corrected times")
        try:
            tried = (_try_in_arena if facts.in_arena else _try)(run, facts, bounds)
        except InfeasibleError:
            if not tries:
                raise
            break
        if not run.runnable or not (run.asked.verify or run.asked.latency):
            return _kept_to(run, tried)
        tried = _measure(run, tried, plain)
        tries.append(tried)
        bounds, fits, slack = _corrected(run, tried, plain, bounds)
        if fits:
            good.append(tried)
        if fits and not (slack and len(good) < SLACK_TRIES):
            break
    if not good:
        raise _not_within(run, tries[0])
    return min(good, key=lambda tried: tried.cost(run.asked))


def _calibration(run: Run, facts: Facts, plain: Program) -> float:
    """Return measured seconds of the program without recomputation over eager's, where a limit needs it."""
    if run.asked.latency is None or not facts.eager.measured:
        return 1.0
    with run.stages("verify", "timing eager"):
        taken = prove.seconds(run.task, {"plain": plain})
    return taken["plain"] / taken["eager"]


def _kept_to(run: Run, tried: Tried) -> Tried:
    """Refuse a given plan whose predicted peak is over the budget; the search keeps to it by itself."""
    budget = tried.facts.budget
    if budget is None or tried.program.peak <= budget:
        return tried
    raise _not_within(run, tried)


def _try(run: Run, facts: Facts, bounds: Bounds) -> Tried:
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


def _try_in_arena(run: Run, facts: Facts, bounds: Bounds) -> Tried:
    """Plan, lay out, and plan again with fewer live bytes, until the arena is within the budget."""
    capacity, found = facts.arena_budget, None
    seen: set[Plan] = set()
    why = arena.why_predicted(run.task, run.runnable, facts.captured.graph)
    run.note(*([why] if why else []))
    for _ in range(ATTEMPTS if run.asked.plan is None else 1):
        try:
            tried = _try(run, facts, bounds)
        except InfeasibleError as error:
            if found is None:
                raise arena.restated(error, capacity, facts.resident) from None
            break
        tried = _laid_out(run, tried, not why)
        if tried.program.peak <= facts.resident + capacity:
            return tried
        program = tried.program
        assert program.layout is not None
        found = tried if found is None or program.peak < found.program.peak else found
        assert bounds.memory is not None
        memory = bounds.memory - (program.layout.arena - capacity)
        if program.plan in seen:
            memory = min(memory, program.timeline.peak - 1)
        seen.add(program.plan)
        bounds = replace(bounds, memory=memory)
    assert found is not None
    assert found.program.layout is not None
    bound = max(found.kept.lower_bound_bytes - facts.resident, 0)
    raise arena.over(found.program.layout, capacity, bound)


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


def _seconds_limit(run: Run, plain: Program, correction: float) -> float | None:
    """Return the latency limit in seconds as the simulator counts them.

    Args:
        run: the optimization.
        plain: the program without recomputation, whose predicted seconds stand for eager's.
        correction: what the measured ratio of a plan was over the predicted one.
    """
    if run.asked.latency is None:
        return None
    return run.asked.latency * plain.timeline.seconds / correction


def _measure(run: Run, tried: Tried, plain: Program) -> Tried:
    with run.stages("verify", "measuring"):
        seen = prove.watch(run.task, tried.program)
        assert seen.measured is not None
        nbytes = seen.measured.peak_bytes
        tried = replace(tried, seen=seen, figures=prove.Figures(nbytes))
        if not tried.facts.eager.measured:
            return tried
        key = proof_cache.key_of(run.task, tried.program)
        known = proof_cache.load(run.proofs, key) if run.asked.plan is None else None
        times = _timed(run, tried.program, plain) if known is None else known.times
    facts = replace(tried.facts, eager=replace(tried.facts.eager, cpu_seconds=times.eager))
    figures = prove.Figures(nbytes, times.plan)
    return replace(tried, facts=facts, figures=figures, times=times, key=key, known=known)


def _timed(run: Run, program: Program, plain: Program) -> Times:
    taken = prove.seconds(run.task, {"plan": program, "plain": plain})
    return Times(taken["eager"], taken["plan"], taken["plain"] / taken["eager"], f"{date.today()}")


def _corrected(run: Run, tried: Tried, plain: Program, bounds: Bounds) -> tuple[Bounds, bool, bool]:
    """Return bounds that make up for what prediction missed, whether all fits, and whether time is left."""
    figures, budget = tried.figures, tried.facts.budget
    assert figures.peak_bytes is not None
    over_memory = budget is not None and figures.peak_bytes > budget
    ratio, latency = _ratio(figures.cpu_seconds, tried.facts.eager.cpu_seconds), run.asked.latency
    memory, seconds = bounds.memory, bounds.seconds
    if over_memory and memory is not None:
        memory -= figures.peak_bytes - tried.program.peak
    if ratio is None or latency is None:
        return Bounds(memory, seconds), not over_memory, False
    over_time, slack = ratio > latency, memory is None and ratio < SLACK * latency
    if over_time or slack:
        predicted = tried.program.timeline.seconds / plain.timeline.seconds
        corrected = _seconds_limit(run, plain, ratio / predicted)
        assert corrected is not None
        seconds = MARGIN * (min(corrected, seconds or corrected) if over_time else corrected)
    return Bounds(memory, seconds), not (over_memory or over_time), slack


def _not_within(run: Run, tried: Tried) -> InfeasibleError:
    figures = tried.figures
    peak = figures.peak_bytes or tried.program.peak
    ratio = _ratio(figures.cpu_seconds, tried.facts.eager.cpu_seconds)
    time = "" if ratio is None else f" at {ratio:.3f}x eager's time"
    error = InfeasibleError(
        stage="search",
        what="no plan measured within the limits"
        if run.asked.plan is None
        else "the plan is over the limits",
        expected=asked(replace(run.asked.limits, memory_bytes=tried.facts.budget)),
        got=f"{peak:,} bytes{time}",
        hint="allow more memory or more time" if run.asked.plan is None else "change the plan, or its limits",
    )
    error.lowest_peak_bytes = peak
    error.lower_bound_bytes = tried.kept.lower_bound_bytes
    return error


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
