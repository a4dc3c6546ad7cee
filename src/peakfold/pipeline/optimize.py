"""Optimize one task: capture, cost, search, emit, and prove, until what was asked for holds."""

import threading
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path

import torch

from peakfold.bridge.capture import Captured
from peakfold.bridge.runtime.compiled import Compiled, compiled
from peakfold.bridge.runtime.step import Step
from peakfold.bridge.runtime.verify import Observed
from peakfold.cost import roofline
from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError, NotEqualError, PlanError, UsageError
from peakfold.graph.rewrite.simplify import simplified
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.ir.text import parse_plan, print_graph, print_plan
from peakfold.options import Options, from_environment
from peakfold.pipeline import arena, host, proof_cache, prove, rewriting
from peakfold.pipeline.before import timeline_before
from peakfold.pipeline.carry import Carrier
from peakfold.pipeline.machine import environment, free_bytes
from peakfold.pipeline.plan_cache import Kept
from peakfold.pipeline.pricing import priced
from peakfold.pipeline.program import Program, emit_plan
from peakfold.pipeline.proof_cache import Proof, Times
from peakfold.pipeline.reporting import Facts, report_of
from peakfold.pipeline.request import Request
from peakfold.pipeline.search import Bounds, find, unsearched
from peakfold.pipeline.stage import Stages
from peakfold.pipeline.task import Task
from peakfold.pipeline.transfer import transfer
from peakfold.plan.fission.derive import Splitter
from peakfold.report.model import Eager, Equality, Report, Timeline
from peakfold.report.progress import Progress, silent
from peakfold.report.words import asked

ONE_AT_A_TIME = threading.RLock()
ATTEMPTS = 4
MARGIN = 0.995
SLACK = 0.98
SLACK_TRIES = 2
ROOM = 0.8
FLOAT64 = 2
COPIES = 3


@dataclass(frozen=True)
class Outcome:
    """What an optimization comes to: the step (None on a simulated device) and its report."""

    step: Step | None
    report: Report

    def require_equal(self) -> None:
        """Raise unless the program was found equal, or was not checked.

        Raises:
            NotEqualError: it computes something else.
        """
        equal = self.report.equal
        if equal.ok is False:
            raise NotEqualError(
                stage="verify",
                what=f"the optimized {self.report.target} does not compute what the original does",
                expected=f"an error of at most {equal.bound}, and every bit in the working precision",
                got=f"{equal.max_error}",
                hint="this is a fault of peakfold: please report it with the model",
            )


@dataclass
class _Run:
    """One optimization as it goes on."""

    task: Task
    asked: Request
    options: Options
    stages: Stages
    notes: list[str] = field(default_factory=list)

    @property
    def proofs(self) -> Path:
        """Where proofs are kept."""
        return self.options.cache / "proofs"

    @property
    def runnable(self) -> bool:
        """Whether anything can be run at all."""
        return self.task.is_real and not self.asked.simulated

    def program(self, captured: Captured, costs: Costs, plan: Plan, budget: int | None) -> Program:
        versions = {"torch": torch.__version__}
        with self.stages("codegen"):
            found = emit_plan(
                captured,
                plan,
                costs,
                self.asked.name,
                versions,
                budget,
                lambda graph: _costs(self, graph),
                host.folder(self.asked),
            )
        host.require_room(found.host_bytes, self.asked)
        return found


def optimize(task: Task, asked: Request, progress: Progress = silent) -> Outcome:
    """Return an optimized step for a task, proved and measured, and what is known about it.

    One at a time in a process: torch's profiler, which measures, is one for all threads.

    Raises:
        CaptureError: the program cannot be captured.
        InfeasibleError: the budget cannot be kept.
        UsageError: the request cannot be served on this device.
    """
    with ONE_AT_A_TIME:
        return _optimize(task, asked, progress)


def _optimize(task: Task, asked: Request, progress: Progress, notes: tuple[str, ...] = ()) -> Outcome:
    options = from_environment()
    run = _Run(task, asked, options, Stages(progress, options.dump), list(notes))
    captured = _capture(run)
    costs = _costs(run, captured.graph)
    plain = run.program(captured, costs, Plan(captured.graph.digest), None)
    before = _before(run, captured, costs)
    captured, costs, plain = _rewritten(run, captured, costs, plain)
    eager, seen = _eager(run, before)
    budget = _budget(run, eager, plain)
    facts = Facts(asked, captured, costs, before, eager, budget, plain.timeline.resident)
    found = _within(run, facts, plain, seen)
    if run.task.rounds and found.equality.ok is False:
        why = f"rewriting with other rounding was not kept: an error of {found.equality.max_error}"
        return _optimize(task, replace(asked, rounding=False), progress, (why,))
    return _outcome(run, found)


def _capture(run: _Run) -> Captured:
    with run.stages("capture"):
        captured = run.task.capture()
    run.stages.dump("graph.txt", print_graph(captured.graph))
    return captured


def _rewritten(
    run: _Run, captured: Captured, costs: Costs, plain: Program
) -> tuple[Captured, Costs, Program]:
    """Return the rewritten program where it takes neither more bytes nor more time, else the given one."""
    simple = _simplified(run, captured, costs, plain)
    return _rounded(run, captured.graph, *simple) if run.asked.rounding else simple


def _simplified(
    run: _Run, captured: Captured, costs: Costs, plain: Program
) -> tuple[Captured, Costs, Program]:
    given = (captured, costs, plain)
    for_captured = run.asked.plan is not None and captured.graph.digest in run.asked.plan
    if not run.asked.rewrite or for_captured:
        return given
    with run.stages("rewrite"):
        graph = simplified(captured.graph)
    if graph.digest == captured.graph.digest:
        return given
    captured = replace(captured, graph=graph)
    costs = _costs(run, graph)
    found = run.program(captured, costs, Plan(graph.digest), None)
    if not found.timeline.peak <= plain.timeline.peak or not found.timeline.seconds <= plain.timeline.seconds:
        return given
    run.task = replace(run.task, rewriter=simplified)
    run.stages.dump("rewritten.txt", print_graph(graph))
    return captured, costs, found


def _rounded(
    run: _Run, original: Graph, captured: Captured, costs: Costs, plain: Program
) -> tuple[Captured, Costs, Program]:
    """Return the program after rewrites that round otherwise, where it is faster and takes no more bytes."""
    given = (captured, costs, plain)
    with run.stages("rewrite"):
        made = rewriting.rounded(captured.graph, run.asked, run.options)
    run.stages.dump("rewriting.json", made.account)
    graph = made.found.graph
    if not made.found.steps:
        run.notes.append("no rewrite that rounds otherwise was faster")
        return given
    captured = replace(captured, graph=graph)
    costs = _costs(run, graph)
    found = run.program(captured, costs, Plan(graph.digest), None)
    if not rewriting.saves(plain, found):
        run.notes.append("rewriting was not kept: the simulated program takes more bytes, or as many seconds")
        return given
    if run.runnable and run.asked.verify:
        with run.stages("verify", "timing what was rewritten"):
            faster, note = rewriting.is_faster(run.task, plain, found)
        run.notes.append(note)
        if not faster:
            return given
    run.notes += made.notes
    run.task = replace(run.task, rewriter=Carrier(original, graph), rounds=True)
    run.stages.dump("rounded.txt", print_graph(graph))
    return captured, costs, found


def _costs(run: _Run, graph: Graph) -> Costs:
    with run.stages("profile"):
        tell = partial(_tell, run.stages)
        costs, notices = priced(graph, run.task, run.asked, run.options, tell)
        run.notes += notices
        return costs


def _tell(stages: Stages, done: int, total: int) -> None:
    stages.progress("profile", done / max(total, 1), f"{done} of {total} operators")


def _before(run: _Run, captured: Captured, costs: Costs) -> Timeline:
    """Return eager's memory over the step, predicted."""
    if not run.task.is_real and not run.asked.simulated:
        run.notes.append("the step is on the meta device: nothing was run, all figures are predicted")
    with run.stages("capture"):
        return timeline_before(run.task, captured.graph, costs)


def _eager(run: _Run, before: Timeline) -> tuple[Eager, Observed | None]:
    """Return eager's peak, and what it left: measured where it may be run, else predicted."""
    predicted = Eager(peak_bytes=before.peak_bytes)
    share = run.asked.memory is not None and run.asked.memory.share is not None
    if not run.runnable or not (run.asked.verify or share or run.asked.latency):
        return predicted, None
    needed = (predicted.peak_bytes or 0) + run.task.resident()
    if needed > ROOM * free_bytes(run.task.device):
        run.notes.append("eager does not fit on this device: its figures are predicted")
        return predicted, None
    with run.stages("verify", "running eager"):
        seen = prove.watch(run.task, None)
    assert seen.measured is not None
    if not seen.is_finite:
        run.notes.append("the loss is not finite: NaN or infinite in eager, and as it is in the program")
    return Eager(peak_bytes=seen.measured.peak_bytes, measured=True), seen


def _budget(run: _Run, eager: Eager, plain: Program) -> int | None:
    """Return the budget in bytes, None where there is none or where it asks for nothing."""
    asked = run.asked.memory
    if asked is None:
        return None
    if eager.peak_bytes is None and asked.share is not None:
        raise UsageError(
            stage="options", what="a share of eager's peak needs eager's peak", expected="a budget in bytes"
        )
    free = _free(run) if asked.fit else 0
    resident = plain.timeline.resident if asked.arena else 0
    budget = resident + asked.resolve((eager.peak_bytes or 0) - resident, free)
    if budget >= plain.timeline.peak:
        run.notes.append(
            f"the budget asks for nothing: without recomputation the step takes {plain.timeline.peak:,} bytes"
        )
    return budget


def _free(run: _Run) -> int:
    """Return all that a simulated device has; of a real one what is free, and what the step holds."""
    if run.asked.simulated:
        return roofline.described(run.asked.device.removeprefix("sim:")).memory
    return free_bytes(run.task.device) + run.task.resident()


@dataclass(frozen=True)
class _Tried:
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


def _within(run: _Run, facts: Facts, plain: Program, seen: Observed | None) -> _Tried:
    """Search, run, and search again with tighter bounds until what was measured is within what was asked."""
    bounds = Bounds(facts.budget, _seconds_limit(run, plain, _calibration(run, facts, plain)))
    tries: list[_Tried] = []
    good: list[_Tried] = []
    for attempt in range(ATTEMPTS if run.asked.plan is None else 1):
        if attempt:
            run.stages.progress("search", 0.0, f"{attempt} measured, once more with corrected times")
        tried = (_try_in_arena if facts.in_arena else _try)(run, facts, bounds)
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
    return _proved(run, min(good, key=lambda tried: tried.cost(run.asked)), seen)


def _calibration(run: _Run, facts: Facts, plain: Program) -> float:
    """Return measured seconds of the program without recomputation over eager's, where a limit needs it."""
    if run.asked.latency is None or not facts.eager.measured:
        return 1.0
    with run.stages("verify", "timing eager"):
        taken = prove.seconds(run.task, {"plain": plain})
    return taken["plain"] / taken["eager"]


def _kept_to(run: _Run, tried: _Tried) -> _Tried:
    """Refuse a given plan whose predicted peak is over the budget; the search keeps to it by itself."""
    budget = tried.facts.budget
    if budget is None or tried.program.peak <= budget:
        return tried
    raise _not_within(run, tried)


def _try(run: _Run, facts: Facts, bounds: Bounds) -> _Tried:
    graph = facts.captured.graph
    if run.asked.plan is not None:
        kept = unsearched(parse_plan(run.asked.plan, graph, Splitter()), "a plan was given")
    else:
        with run.stages("search"):
            kept, faults = find(
                graph,
                facts.costs,
                bounds,
                run.asked,
                run.options,
                run.stages,
                lambda one: _costs(run, one),
            )
        run.notes += [fault for fault in faults if fault not in run.notes]
    run.stages.dump("plan.txt", print_plan(kept.plan, graph, splitter=Splitter()))
    program = run.program(facts.captured, facts.costs, kept.plan, facts.budget)
    run.stages.dump("step.py", program.source)
    return _Tried(program, kept, facts)


def _try_in_arena(run: _Run, facts: Facts, bounds: Bounds) -> _Tried:
    """Plan, lay out, and plan again with fewer live bytes, until the arena is within the budget."""
    capacity, found = facts.arena_budget, None
    why = arena.why_predicted(run.task, run.runnable)
    run.notes += [why] if why and why not in run.notes else []
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
        bounds = replace(bounds, memory=bounds.memory - (program.layout.arena - capacity))
    assert found is not None
    assert found.program.layout is not None
    bound = max(found.kept.lower_bound_bytes - facts.resident, 0)
    raise arena.over(found.program.layout, capacity, bound)


def _laid_out(run: _Run, tried: _Tried, runs: bool) -> _Tried:
    """Place what a program allocates; where that is over the budget, try other orders of its steps."""
    facts, seed = tried.facts, run.asked.seed
    capacity = facts.arena_budget
    with run.stages("arena"):
        program = arena.laid_out(run.task, tried.program, capacity, run=runs, seed=seed)
        placed = replace(tried, program=program)
        if program.peak <= facts.resident + capacity or run.asked.plan is not None:
            return placed
        plan = arena.reordered(program, capacity, seed)
        if plan is None:
            return placed
        other = run.program(facts.captured, facts.costs, plan, facts.budget)
        other = arena.laid_out(run.task, other, capacity, run=runs, seed=seed)
    if other.peak >= program.peak:
        return placed
    return replace(tried, program=other, kept=replace(tried.kept, plan=plan))


def _seconds_limit(run: _Run, plain: Program, correction: float) -> float | None:
    """Return the latency limit in seconds as the simulator counts them.

    Args:
        run: the optimization.
        plain: the program without recomputation, whose predicted seconds stand for eager's.
        correction: what the measured ratio of a plan was over the predicted one.
    """
    if run.asked.latency is None:
        return None
    return run.asked.latency * plain.timeline.seconds / correction


def _measure(run: _Run, tried: _Tried, plain: Program) -> _Tried:
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


def _timed(run: _Run, program: Program, plain: Program) -> Times:
    taken = prove.seconds(run.task, {"plan": program, "plain": plain})
    return Times(taken["eager"], taken["plan"], taken["plain"] / taken["eager"], f"{date.today()}")


def _corrected(run: _Run, tried: _Tried, plain: Program, bounds: Bounds) -> tuple[Bounds, bool, bool]:
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


def _proved(run: _Run, tried: _Tried, seen: Observed | None) -> _Tried:
    """Compare with eager: at the full batch where eager fits in float64, else at a part of it."""
    if tried.known is not None:
        day = tried.known.times.day
        run.notes.append(f"times are as measured on {day}: same program, weights, batch and machine")
    if not run.asked.verify or not run.runnable:
        return tried
    needed = FLOAT64 * (tried.facts.eager.peak_bytes or 0) + COPIES * run.task.resident()
    share = ROOM * free_bytes(run.task.device) / max(needed, 1)
    with run.stages("verify", "comparing with eager"):
        if share >= 1 and seen is not None and tried.seen is not None:
            return replace(tried, equality=_equal(run, tried, seen, tried.seen))
        found = prove.equal_in_part(run.task, tried.program, share)
    if found.ok is None:
        run.notes.append("eager does not fit, and neither does the plan a smaller batch: not compared")
    return replace(tried, equality=found)


def _equal(run: _Run, tried: _Tried, eager: Observed, found: Observed) -> Equality:
    """Compare with eager; what float64 came to before, for the very same program and tensors, is kept."""
    equality = prove.equal(run.task, tried.program, eager, found, known=tried.known)
    if tried.known is not None:
        run.notes.append("the comparison in float64 is from before: same program, weights, batch and machine")
    elif equality.ok and tried.times and equality.max_error is not None and equality.bound is not None:
        proof = Proof(equality.max_error, equality.bound, tried.times)
        fault = proof_cache.store(run.proofs, tried.key, proof)
        run.notes += [] if fault is None else [fault]
    return equality


def _not_within(run: _Run, tried: _Tried) -> InfeasibleError:
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


def _outcome(run: _Run, tried: _Tried) -> Outcome:
    report = report_of(
        tried.facts,
        tried.program,
        tried.kept,
        figures=tried.figures,
        equality=tried.equality,
        plain_over_eager=None if tried.times is None else tried.times.plain_over_eager,
        seconds=run.stages.seconds(),
        notes=tuple(run.notes),
        environment=environment(run.asked.seed),
        use=None if tried.seen is None else tried.seen.use,
    )
    if not run.runnable:
        return Outcome(None, report)
    return Outcome(_step(run, tried.program, report), report)


def _served_below(run: _Run, program: Program, task: Task) -> Compiled | None:
    """Return the same plan for a smaller shape in the same arena, unsearched; None where it cannot be."""
    if program.layout is None or not program.in_arena:
        return None
    try:
        captured = task.capture()
    except PlanError:
        return None
    plan = transfer(program.plan, program.captured.graph, captured.graph)
    if plan is None:
        return None
    small = run.program(captured, _costs(run, captured.graph), plan, None)
    found = arena.served_below(task, small, program.layout)
    if found is None:
        return None
    parts = (captured, plan, small.source, task.model, task.optimizer, task.batch)
    return compiled(*parts, inference=task.loss_fn is None, layout=found.layout)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _step(run: _Run, program: Program, report: Report) -> Step:
    task = run.task
    inference = task.loss_fn is None
    first = compiled(
        program.captured,
        program.plan,
        program.source,
        task.model,
        task.optimizer,
        task.batch,
        inference=inference,
        report=report,
        layout=program.layout if program.in_arena else None,
    )

    def recapture(batch: object) -> object:
        below = _served_below(run, program, task.with_batch(batch))
        if below is not None:
            return below
        asked = replace(run.asked, verify=False, plan=None)
        plain = replace(task, rewriter=None, rounds=False) if task.rounds else task
        again = optimize(plain.with_batch(batch), asked)
        assert again.step is not None
        return again.step.compiled

    return Step(task.subject, first, recapture)  # type: ignore[arg-type]
