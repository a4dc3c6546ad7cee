"""Optimize one task: capture, cost, search, emit, and prove, until what was asked for holds."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Literal

from peakfold.bridge.capture import Captured
from peakfold.bridge.runtime.compiled import Compiled, compiled
from peakfold.bridge.runtime.step import MOST_PROGRAMS, Step
from peakfold.cost import roofline
from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError, NotEqualError, PlanError, UsageError
from peakfold.graph.rewrite.passes.losses import spared_bytes
from peakfold.graph.rewrite.passes.quicker import SMALLER
from peakfold.graph.rewrite.simplify import simplified
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.ir.text import print_graph
from peakfold.options import from_environment
from peakfold.pipeline import arena, rewriting
from peakfold.pipeline.anew import made_anew
from peakfold.pipeline.attempts import within
from peakfold.pipeline.before import timeline_before
from peakfold.pipeline.carry import Carrier
from peakfold.pipeline.given import require_plan
from peakfold.pipeline.held import held
from peakfold.pipeline.machine import environment, free_bytes
from peakfold.pipeline.moves import is_for, is_of
from peakfold.pipeline.once import WHY_NOT, computed_once
from peakfold.pipeline.original import original
from peakfold.pipeline.program import Program
from peakfold.pipeline.proof import proved
from peakfold.pipeline.quicker import Quickened, every, quickest
from peakfold.pipeline.reporting import Facts, report_of
from peakfold.pipeline.request import Request
from peakfold.pipeline.run import Run
from peakfold.pipeline.stage import Stages
from peakfold.pipeline.task import Task
from peakfold.pipeline.trades import traded
from peakfold.pipeline.transfer import transfer
from peakfold.pipeline.tried import Tried, why_unsplit
from peakfold.report.json import to_json
from peakfold.report.model import Eager, Report, Timeline
from peakfold.report.progress import Progress, silent

ONE_AT_A_TIME = threading.RLock()

Forms = Literal["quickest", "smallest", "captured"]
"""Of operators: those that take least time; with those of fewest bytes; those that were captured."""
WHY: Mapping[Forms, str] = {
    "smallest": "the gradient of the loss is made some rows at a time, though that is slower: "
    "else no program within the budget was found",
    "captured": "quicker forms of operators were not used: with them no program within the budget was found",
}

Serve = Callable[[object], Compiled | None]


def _serves_none(_: object) -> Compiled | None:
    return None


@dataclass(frozen=True)
class Outcome:
    """What an optimization comes to.

    Attributes:
        step: None on a simulated device.
        report: what is known about it.
        serve: makes a program for a smaller batch in the arena of this one; None where it cannot be.
    """

    step: Step | None
    report: Report
    serve: Serve = _serves_none

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


def optimize(task: Task, asked: Request, progress: Progress = silent, notes: tuple[str, ...] = ()) -> Outcome:
    """Return an optimized step for a task, proved and measured, and what is known about it.

    One at a time in a process: torch's profiler, which measures, is one for all threads.

    Raises:
        CaptureError: the program cannot be captured.
        InfeasibleError: the budget cannot be kept.
        UsageError: the request cannot be served on this device.
    """
    with ONE_AT_A_TIME:
        return _optimize(task, asked, progress, notes)


def _optimize(
    task: Task, asked: Request, progress: Progress, notes: tuple[str, ...] = (), forms: Forms = "quickest"
) -> Outcome:
    options = from_environment()
    run = Run(task, asked, options, Stages(progress, options.dump), list(notes))
    captured = _capture(run)
    if asked.plan is not None:
        require_plan(asked.plan, captured.graph, is_rounded=asked.rounding)
    costs = run.costs(captured.graph)
    plain = run.program(captured, costs, Plan(captured.graph.digest), None)
    before, of_user = _before(run, captured, costs), captured
    captured, costs, plain = computed_once(run, *_rewritten(run, captured, costs, plain, forms))
    eager, seen = original(run, of_user, before)
    holds = held(task, captured) if asked.arena_holds == "all" else ()
    resident = plain.timeline.resident - sum(one.size for one in holds)
    budget = _budget(run, eager, plain, resident)
    facts = Facts(asked, captured, costs, before, eager, budget, resident, holds)
    facts = traded(run, facts, plain.timeline.seconds)
    try:
        tried = within(run, facts, plain)
    except InfeasibleError as error:
        if run.task.once and asked.keep_constants:
            return _optimize(task, replace(asked, keep_constants=False), progress, (*notes, WHY_NOT), forms)
        others = _others(run, of_user.graph, forms)
        if others is None:
            raise
        said = tuple(note for note in notes if note not in WHY.values())
        try:
            return _optimize(task, asked, progress, (*said, WHY[others]), others)
        except InfeasibleError as other:
            raise min(error, other, key=lambda one: one.lowest_peak_bytes) from None
    run.note(*why_unsplit(asked, tried.program.plan))
    found = proved(run, tried, seen)
    if run.task.rounds and found.equality.ok is False:
        why = f"rewriting with other rounding was not kept: an error of {found.equality.max_error}"
        return _optimize(task, replace(asked, rounding=False), progress, (why,))
    return _outcome(run, found)


def _others(run: Run, graph: Graph, tried: Forms) -> Forms | None:
    """Return the forms of operators to plan with where no program in those that were tried keeps the budget.

    Args:
        run: what was tried.
        graph: as captured.
        tried: the forms in which no program keeps the budget.
    """
    asked = run.asked
    smaller = asked.rewrite and asked.plan is None and not _is_whole(asked) and not run.kinds & SMALLER
    if tried == "quickest" and smaller and spared_bytes(simplified(graph)) > 0:
        return "smallest"
    again = run.is_quickened if tried == "quickest" else tried == "smallest" and bool(run.kinds - SMALLER)
    return "captured" if again else None


def _capture(run: Run) -> Captured:
    with run.stages("capture"):
        captured = run.task.capture()
    if run.task.keyed and captured.binding.key >= 0:
        compared = ": eager is compared under the same" if run.runnable and run.asked.verify else ""
        run.note(f"random numbers are made from a key and a counter{compared}")
    run.stages.dump("graph.txt", print_graph(captured.graph))
    return captured


def _rewritten(
    run: Run, captured: Captured, costs: Costs, plain: Program, forms: Forms
) -> tuple[Captured, Costs, Program]:
    """Return the rewritten program where it takes neither more bytes nor more time, else the given one."""
    simple = _simplified(run, captured, costs, plain, forms)
    return _rounded(run, captured.graph, *simple) if run.asked.rounding else simple


def _simplified(
    run: Run, captured: Captured, costs: Costs, plain: Program, forms: Forms
) -> tuple[Captured, Costs, Program]:
    given = (captured, costs, plain)
    for_captured = run.asked.plan is not None and is_of(run.asked.plan, captured.graph)
    if not run.asked.rewrite or for_captured:
        return given
    for rewriter in _rewriters(run, captured.graph, forms):
        with run.stages("rewrite"):
            graph = rewriter(captured.graph)
        if graph.digest == captured.graph.digest:
            continue
        there = replace(captured, graph=graph)
        found = run.program(there, run.costs(graph), Plan(graph.digest), None)
        most = inf if forms == "smallest" else (1 + rewriter.spare) * plain.timeline.seconds
        if found.timeline.peak <= plain.timeline.peak and found.timeline.seconds <= most:
            run.task = replace(run.task, rewriter=rewriter)
            run.stages.dump("rewritten.txt", print_graph(graph))
            return there, found.costs, found
    return given


def _rewriters(run: Run, graph: Graph, forms: Forms) -> Iterator[Quickened]:
    """Yield what may be done to the captured graph, the best first; a given plan says itself for which."""
    if run.asked.plan is not None:
        yield from (one for one in every(graph) if is_for(run.asked.plan, one(graph)))
    asked = run.asked
    if forms == "smallest":
        yield Quickened(quickest(graph, run.costs).kinds | SMALLER)
    if forms != "captured":
        if asked.memory is not None or asked.latency is not None:
            yield quickest(graph, run.costs, least=True, whole=_is_whole(asked))
        yield quickest(graph, run.costs, whole=_is_whole(asked))
    yield Quickened()


def _is_whole(asked: Request) -> bool:
    """Whether operators stay whole, for regions that are split or rewrites that round otherwise."""
    return asked.fission or asked.rounding


def _rounded(
    run: Run, original: Graph, captured: Captured, costs: Costs, plain: Program
) -> tuple[Captured, Costs, Program]:
    """Return the program after rewrites that round otherwise, where it is faster and takes no more bytes."""
    given = (captured, costs, plain)
    with run.stages("rewrite"):
        made = rewriting.rounded(captured.graph, run.asked, run.options)
    run.stages.dump("rewriting.json", made.account)
    graph = made.found.graph
    if not made.found.steps:
        run.note("no rewrite that rounds otherwise was faster")
        return given
    captured = replace(captured, graph=graph)
    costs = run.costs(graph)
    found = run.program(captured, costs, Plan(graph.digest), None)
    if not rewriting.saves(plain, found):
        run.note("rewriting was not kept: the simulated program takes more bytes, or as many seconds")
        return given
    if run.runnable and run.asked.verify:
        with run.stages("verify", "timing what was rewritten"):
            faster, note = rewriting.is_faster(run.task, plain, found)
        run.note(note)
        if not faster:
            return given
    run.note(*made.notes)
    run.task = replace(run.task, rewriter=Carrier(original, graph), rounds=True)
    run.stages.dump("rounded.txt", print_graph(graph))
    return captured, costs, found


def _before(run: Run, captured: Captured, costs: Costs) -> Timeline:
    """Return eager's memory over the step, predicted."""
    if not run.task.is_real and not run.asked.simulated:
        run.note("the step is on the meta device: nothing was run, all figures are predicted")
    with run.stages("capture"):
        return timeline_before(run.task, captured.graph, costs)


def _budget(run: Run, eager: Eager, plain: Program, resident: int) -> int | None:
    """Return the budget in bytes, None where there is none or where it asks for nothing.

    What is resident is what lies outside an arena.
    """
    asked = run.asked.memory
    if asked is None:
        return None
    if eager.peak_bytes is None and asked.share is not None:
        what, hint = "a share of eager's peak needs eager's peak", "write a size, such as 4GiB"
        raise UsageError("options", what, "", "a budget in bytes", asked.text, hint)
    free = _free(run) if asked.fit else 0
    resident = resident if asked.arena else 0
    budget = resident + asked.resolve((eager.peak_bytes or 0) - resident, free)
    if budget >= plain.timeline.peak:
        run.note(
            f"the budget asks for nothing: without recomputation the step takes {plain.timeline.peak:,} bytes"
        )
    return budget


def _free(run: Run) -> int:
    """Return all that a simulated device has; of a real one what is free, and what the step holds."""
    if run.asked.simulated:
        return roofline.described(run.asked.device.removeprefix("sim:")).memory
    return free_bytes(run.task.device) + run.task.resident()


def _outcome(run: Run, tried: Tried) -> Outcome:
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
    serve = partial(_served_below, run, tried.program)
    return Outcome(_step(run, tried.program, report, serve), report, serve)


def _served_below(run: Run, program: Program, batch: object) -> Compiled | None:
    """Return the same plan for a smaller shape in the same arena, unsearched; None where it cannot be."""
    if program.layout is None or not program.in_arena:
        return None
    task = run.task.with_batch(batch)
    try:
        captured = task.capture()
    except PlanError:
        return None
    plan = transfer(program.plan, program.captured.graph, captured.graph)
    if plan is None:
        return None
    small = run.program(captured, run.costs(captured.graph), plan, None)
    found = arena.served_below(task, small, program.layout)
    if found is None:
        return None
    parts = (captured, plan, found.source, task.model, task.optimizer, task.batch)
    return compiled(*parts, inference=task.loss_fn is None, layout=found.layout)


def _step(run: Run, program: Program, report: Report, serve: Serve) -> Step:
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
        told=partial(to_json, report),
    )
    served = deque([serve], MOST_PROGRAMS)
    budget = run.asked.memory
    if report.arena is not None and budget is not None:
        budget = replace(budget, nbytes=report.arena.budget_bytes, share=None, fit=False)
    asked = replace(run.asked, memory=budget)

    def recapture(batch: object) -> Compiled:
        below = next((made for one in served if (made := one(batch)) is not None), None)
        if below is not None:
            return below
        plain = replace(task, rewriter=None, rounds=False, once=()).with_batch(batch)
        optimized = partial(optimize, plain, progress=silent)
        again = made_anew(optimized, asked, report.limits.memory_bytes)
        assert again.step is not None
        served.appendleft(again.serve)
        return again.step.compiled

    return Step(task.subject, first, recapture)
