"""A program in one arena: what it allocates is recorded once, placed, and judged by what that takes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from peakfold.bridge.capture.batches import arguments
from peakfold.bridge.runtime.arena import Recorder, require_works
from peakfold.bridge.runtime.arena_native import native
from peakfold.bridge.runtime.compiled import compiled
from peakfold.bridge.runtime.step import Step
from peakfold.errors import CaptureError, InfeasibleError, PlanError, UsageError
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.pipeline.held import held
from peakfold.pipeline.program import Program
from peakfold.pipeline.task import Task
from peakfold.plan.memory.joint import improve_order
from peakfold.plan.memory.layout import Held, Layout, holding, lay_out, live_words, relaid
from peakfold.plan.memory.lifetimes import predicted_nest
from peakfold.plan.memory.recorded import recorded
from peakfold.plan.memory.trace import Trace, in_lines
from peakfold.plan.memory.ways import Choices, Events, every_way
from peakfold.report.units import bytes_text

NAMED = 5
WARMUP = 2
SECONDS = 1.0
MORE_SECONDS = 5.0


def why_predicted(task: Task, runnable: bool, *, holding: bool = False) -> str:
    """Return why what a program allocates cannot be recorded, or nothing where it can.

    Args:
        task: what it is the program of.
        runnable: something can be run.
        holding: the arena is to hold the caller's own tensors too.
    """
    if not runnable:
        return "the arena is planned from predicted allocations: nothing was run"
    if task.device != "cpu" and holding:
        return f"the program runs without its arena: on {task.device} it cannot hold the model's own tensors"
    try:
        require_works(task.device)
    except UsageError as error:
        return f"the program runs without its arena: {error.what} ({error.got}); {error.hint}"
    return ""


def require_allocator() -> None:
    """Refuse to run programs in arenas where their allocator cannot be made.

    Raises:
        UsageError: there is no C++ compiler, or it fails.
    """
    try:
        native()
    except UsageError as error:
        raise UsageError(
            stage="options",
            what=f"programs cannot run in an arena: {error.what}",
            where=error.where,
            expected=error.expected,
            got=error.got,
            hint="install g++ or clang++, or set CXX; or leave --arena out",
        ) from error


def require_kept(plan: Plan, graph: Graph) -> None:
    """Refuse a given plan under which the caller's own tensors leave the device.

    Raises:
        PlanError: it names them.
    """
    inputs = graph.input
    given = (gap.value.node for gap in plan.offload if gap.value.node in inputs)
    away = [inputs[node].name for node in dict.fromkeys(given)]
    if not away:
        return
    more = f" and {len(away) - NAMED} more" if len(away) > NAMED else ""
    raise PlanError(
        stage="arena",
        what="the model's own tensors cannot wait on the host beside an arena: they do not lie in it",
        expected="offloads of what the step itself allocates",
        got=f"offload of {', '.join(away[:NAMED])}{more}",
        hint="remove these lines of the plan, or give the budget without arena:",
    )


def laid_out(
    task: Task,
    program: Program,
    capacity: int | None,
    held: Sequence[Held] = (),
    *,
    run: bool,
    seed: int = 0,
) -> Program:
    """Return a program with a layout of all that it allocates.

    Args:
        task: what it is the program of.
        program: the program.
        capacity: bytes that the arena should have; None for as few as are soon found.
        held: what lies in it beside what the program allocates.
        run: record what it allocates on copies, and run it in the arena; else the layout is of what is
            predicted, for reports alone.
        seed: of the search for places.
    """
    trace = allocations(task, program) if run else predicted_nest(program.nest)
    room = None if capacity is None else capacity - sum(one.room for one in held)
    layout = replace(holding(best_layout(trace, room, seed), held), device=task.device if run else "cpu")
    return program.running_in(layout) if run else replace(program, layout=layout)


def best_layout(trace: Trace, capacity: int | None = None, seed: int = 0) -> Layout:
    """Return the best layout found; a longer search where that misses a capacity that may do."""
    found = lay_out(trace, None, SECONDS, seed)
    if capacity is None or found.arena <= capacity or trace.lower_bound > capacity:
        return found
    return min(found, lay_out(trace, capacity, MORE_SECONDS, seed), key=lambda layout: layout.arena)


def allocations(task: Task, program: Program) -> Trace:
    """Run a program on copies until it is steady, and return what it asks of the allocator.

    Both sides of its branches run, whichever the batch leads to, and one pass of its loops.

    Raises:
        UsageError: a side that the batch does not lead to cannot run on it.
        PlanError: two runs ask for other bytes.
    """
    nest, copy = program.nest, task.clone()
    forks = any(part.bodies for part in nest.nests())
    made = compiled(
        program.captured,
        program.plan,
        program.emitted(marks=True, told=forks),
        copy.model,
        copy.optimizer,
        copy.batch,
        inference=copy.loss_fn is None,
    )
    recorder = Recorder(task.device)
    step = Step(copy.subject, replace(made, guards=made.portable), recorder=recorder)
    args, kwargs = arguments(copy.batch)
    beside = Counter[int]()

    def record(choices: Choices) -> tuple[Events, Trace]:
        nonlocal beside
        recorder.choices = choices
        step(*args, **kwargs)
        beside |= Counter(recorder.beside)
        return recorder.events, recorded(recorder.events, nest)

    def steady() -> Trace:
        for _ in range(WARMUP):
            step(*args, **kwargs)
        return every_way(record) if forks else record({})[1]

    with torch.random.fork_rng(devices=[] if task.device == "cpu" else [task.device]):
        try:
            return in_lines(replace(steady(), beside=tuple(beside.elements())), task.device)
        except (CaptureError, RuntimeError, IndexError) as error:
            if not forks:
                raise
            raise _not_both(error) from error


def _not_both(error: Exception) -> UsageError:
    return UsageError(
        stage="arena",
        what="a side of a branch, or a pass of a loop, cannot run on this batch",
        expected="sides that run on what the batch holds, so that what they allocate is known",
        got=error.got if isinstance(error, CaptureError) else str(error).splitlines()[0],
        hint="give the budget without arena:",
    )


def reordered(program: Program, capacity: int, seed: int = 0) -> Plan | None:
    """Return a plan whose order leads to an arena within a capacity, as predicted; None if none was found."""
    plan = program.plan
    if (
        plan.regions
        or plan.offload
        or plan.compress
        or predicted_nest(program.nest).lower_bound > 2 * capacity
    ):
        return None
    found = improve_order(program.nest.graph, program.nest.costs, plan, capacity=capacity, seed=seed)
    return found.plan if found.layout.arena <= capacity else None


def served_below(task: Task, program: Program, bound: Layout) -> Program | None:
    """Return a program of a smaller shape at a larger one's places; None where it asks for anything else.

    Args:
        task: with the smaller batch.
        program: of this task.
        bound: the layout of the larger program.
    """
    holds = held(task, program.captured) if bound.held else ()
    layout = relaid(bound, allocations(task, program), holds)
    return None if layout is None else program.running_in(layout)


def restated(error: InfeasibleError, capacity: int, resident: int) -> InfeasibleError:
    """Say of an arena what a search said of all bytes, the caller's own tensors included."""
    lowest, bound = error.lowest_peak_bytes - resident, max(error.lower_bound_bytes - resident, 0)
    head, _, reason = error.what.partition(": ")
    slow = reason.startswith("every program") and reason.endswith(" s")
    if reason.startswith("every program") and not slow:
        reason = f"every program needs at least {bytes_text(bound)} of it"
    found = InfeasibleError(
        stage="arena",
        what=head.replace("within the budget", "for this arena") + (f": {reason}" if reason else ""),
        where=error.where,
        expected=f"an arena of {capacity} bytes" + (", and within the time" if slow else ""),
        got=f"at least {lowest} bytes live at once beside {bytes_text(resident)} outside of it; "
        + (f"bound {bound} bytes" if bound else "no bound is proved"),
        hint="allow more time"
        if slow
        else f"allow more than {lowest} bytes: places are whole lines of 64; and more time, if it is limited",
    )
    found.lowest_peak_bytes, found.lower_bound_bytes = lowest, bound
    return found


def over(
    layout: Layout, capacity: int, bound: int, *, proved: bool, given: bool, beside: int = 0
) -> InfeasibleError:
    """Say that no arena within a capacity was found for any plan that was tried.

    Args:
        layout: the smallest arena.
        capacity: bytes that it should have had.
        bound: bytes that no program gets below.
        proved: that bound is above the capacity.
        given: the plan was given, others were not tried.
        beside: bytes that were measured beside the arena, and that nobody planned.
    """
    least = layout.arena + beside
    words = ", ".join(live_words(layout.trace, layout.held))
    other = "change the plan" if given else "a longer search"
    error = InfeasibleError(
        stage="arena",
        what=f"no arena of {capacity} bytes holds any program: proved"
        if proved
        else "no plan was found whose arena is within the budget",
        where=f"largest in the smallest arena: {words}",
        expected=f"an arena of {capacity} bytes",
        got=f"{layout.arena} bytes; {layout.lower_bound} of it live at once"
        + (f"; {beside} bytes measured beside it" if beside else "")
        + (f"; bound {bound} bytes" if bound else ""),
        hint=f"allow an arena of at least {least} bytes" + ("" if proved else f", or {other}"),
    )
    error.lowest_peak_bytes, error.lower_bound_bytes = least, bound
    return error
