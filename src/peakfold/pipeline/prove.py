"""Running both programs: their peaks, their seconds, and whether they compute the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.batches import arguments
from peakfold.bridge.runtime.compare import allowed, distance
from peakfold.bridge.runtime.compiled import Compiled, compiled
from peakfold.bridge.runtime.measure import eager_step, interleaved_cpu_seconds
from peakfold.bridge.runtime.step import Step
from peakfold.bridge.runtime.verify import Equality as Judged
from peakfold.bridge.runtime.verify import Observed, Precision, judge, observe
from peakfold.errors import PlanError
from peakfold.ir.plan import Plan
from peakfold.pipeline.batch import first_rows, rows_of
from peakfold.pipeline.exact import Exact, Precise, of_target, target_of
from peakfold.pipeline.program import Program, emit_plan
from peakfold.pipeline.proof_cache import Proof
from peakfold.pipeline.sides import decided_otherwise, other_sides, ways, why_one_side
from peakfold.pipeline.task import Task
from peakfold.pipeline.transfer import transfer
from peakfold.plan.memory.layout import Layout
from peakfold.report.model import Equality

STEPS = 3
REPEATS = 5
TIMING_SECONDS = 60.0
ROUNDING = 2.0
"""How much further from exact results than eager a program may be that rounds otherwise."""


@dataclass(frozen=True)
class Figures:
    """What was measured of one program; None where it was not."""

    peak_bytes: int | None = None
    cpu_seconds: float | None = None


def make_step(task: Task, program: Program) -> Step:
    """Return the step of a program on copies of the objects that it was captured from.

    Its guards are those that do not ask for the very objects of the capture. Where the optimizer's state
    comes to where it computes something else, the program is captured anew under the same plan.
    """

    def bound(one: Program, layout: Layout | None) -> Compiled:
        parts = (one.captured, one.plan, one.source, task.model, task.optimizer, task.batch)
        made = compiled(*parts, inference=task.loss_fn is None, layout=layout)
        return replace(made, guards=made.portable)

    def captured_anew(batch: object) -> Compiled:
        captured = task.with_batch(batch).capture()
        plan = transfer(program.plan, program.captured.graph, captured.graph)
        return bound(emit_plan(captured, plan or Plan(captured.graph.digest), program.costs), None)

    return Step(task.subject, bound(program, program.layout if program.in_arena else None), captured_anew)


def eager_call(task: Task) -> Callable[[], object]:
    """Return what a user runs today, as a function of nothing."""
    if task.loss_fn is not None:
        parts = (task.optimizer, task.batch, task.scaler, task.clip_grad_norm)
        return eager_step(task.model, task.loss_fn, *parts)
    args, kwargs = arguments(task.batch)

    def call() -> object:
        with torch.no_grad():
            return task.model(*args, **kwargs)

    return call


def planned_call(task: Task, program: Program) -> Callable[[], object]:
    """Return a program on the objects of a task, as a function of nothing."""
    step = make_step(task, program)
    args, kwargs = arguments(task.batch)
    return lambda: step(*args, **kwargs)


def watch(task: Task, program: Program | None, precision: Precision = "working") -> Observed:
    """Run some steps of a program, of eager where it is None, on copies; say what they left and held.

    What eager holds is measured with its own random numbers, whatever it is compared under.
    """
    if program is None and task.keyed and precision == "working":
        own, target = watch(replace(task, keyed=False), None), target_of(task)
        return replace(observe(target, None, steps=STEPS, device=task.device), measured=own.measured)
    make = None if program is None else (lambda copy_: make_step(of_target(task, copy_), program))
    measure = precision == "working"
    return observe(
        target_of(task),
        make,
        steps=STEPS,
        precision=precision,
        measure=measure,
        device=task.device,
        widened=task.widened and program is None,
    )


def seconds(
    task: Task,
    programs: Mapping[str, Program],
    others: Mapping[str, Callable[[], object]] | None = None,
    rounds: int = REPEATS,
) -> dict[str, float]:
    """Return CPU seconds of ``"eager"``, of each program and of other steps, all in turn; on copies.

    Where a program copies beside the computation, they are wall seconds on all cores.
    """
    with torch.random.fork_rng():
        variants = {"eager": eager_call(task.clone())}
        variants |= {name: planned_call(task.clone(), program) for name, program in programs.items()}
        variants |= others or {}
        threads = torch.get_num_threads()
        limit = TIMING_SECONDS * len(variants)
        wall = any(program.host_bytes for program in programs.values())
        return interleaved_cpu_seconds(variants, rounds, threads=threads, budget_seconds=limit, wall=wall)


def equal(
    task: Task,
    program: Program,
    eager: Observed,
    found: Observed,
    batch: str = "full",
    known: Proof | None = None,
    precise: Precise | None = None,
) -> Equality:
    """Compare a program with eager over several steps, in the working precision and in float64.

    Args:
        task: what is optimized.
        program: captured from this task.
        eager: what eager left in the working precision.
        found: what the program left.
        batch: what the report says about the batch.
        known: what the comparison in float64 came to before, for the same program and tensors.
        precise: the task in float64, where other programs are compared too.
    """
    precise = precise or Precise(task, STEPS)
    working = judge(eager, found, batch=batch)
    if program.plan.regions or task.rounds:
        return _rounded(precise, program, eager, found, batch, known)
    if known is not None:
        worst, ok = max(known.max_error, working.max_error), known.max_error <= known.bound
        bits = working.bit_equal
        return Equality(working.ok and ok, worst, known.bound, batch, STEPS, bits, known.widened)
    double = precise.of(program)
    if double is None:
        return Equality(working.ok, working.max_error, working.bound, batch, STEPS, working.bit_equal)
    exact = _exactly(double, batch)
    worst = max(exact.max_error, working.max_error)
    ok, wide = working.ok and exact.ok, double.task.widened
    return Equality(ok, worst, exact.bound, batch, STEPS, working.bit_equal, wide)


def _exactly(double: Exact, batch: str) -> Judged:
    """Compare in float64: as branches are decided, and decided the other way; return the worst."""
    task, program, graph = double.task, double.program, double.program.captured.graph
    seen = watch(task, program, "float64")
    found = judge(double.original, seen, precision="float64", batch=batch)
    if not any(node.bodies for node in graph.nodes) or one_side(task, program):
        return found
    for depths in ways(graph):
        if not found.ok:
            break
        with decided_otherwise(depths):
            original = watch(task, None, "float64")
        other = watch(task, other_sides(program, depths), "float64")
        judged = judge(original, other, precision="float64", batch=found.batch)
        found = max(found, judged, key=lambda equality: (not equality.ok, equality.max_error))
    return found


def one_side(task: Task, program: Program) -> str:
    """Return why the proof covers only the sides of branches that the batch leads to, or nothing."""
    if not any(node.bodies for node in program.captured.graph.nodes):
        return ""
    raw = (
        program.captured.graph
        if task.rewriter is None and not task.once
        else replace(task, rewriter=None, once=()).capture().graph
    )
    return why_one_side(program, raw)


def _rounded(
    precise: Precise, program: Program, eager: Observed, found: Observed, batch: str, known: Proof | None
) -> Equality:
    """Compare a program whose sums are rounded in another order than eager's.

    In float64 it keeps to the bound but for what rounding decides in eager too; in the working precision it
    is at most `ROUNDING` times as far from eager in float64 as eager is. What was proved before, for the same
    program and tensors, holds.
    """
    if known is not None:
        ok, error = known.max_error <= known.bound, known.max_error
        return Equality(ok, error, known.bound, batch, STEPS, False, known.widened, known.undecided)
    double = precise.of(program)
    if double is None:
        return Equality(None, None, None, batch, STEPS, False)
    exact, undecided = _settled(precise, double, _exactly(double, batch), batch)
    own, split = (distance(double.original.results, seen.results) for seen in (eager, found))
    same = own == 0 and _is_double(precise.task)
    ok = exact.ok and (same or split <= ROUNDING * own)
    wide = double.task.widened
    return Equality(ok, exact.max_error, exact.bound, batch, STEPS, False, wide, undecided)


def _is_double(task: Task) -> bool:
    """Whether the model's own precision is float64: the comparison in it has been made then."""
    held = (*task.model.parameters(), *task.model.buffers(), *pytree.tree_leaves(task.batch))
    real = (leaf for leaf in held if isinstance(leaf, torch.Tensor) and leaf.is_floating_point())
    return all(leaf.dtype == torch.float64 for leaf in real)


def _settled(precise: Precise, double: Exact, found: Judged, batch: str) -> tuple[Judged, int]:
    """Judge again what is over the bound: without the numbers that rounding alone decides, and how many.

    Programs that decide between branches are judged as they were: their sides are compared one by one.
    """
    if found.ok or any(node.bodies for node in double.program.captured.graph.nodes):
        return found, 0
    original, program = double.original, watch(double.task, double.program, "float64")
    settled = precise.spread(double).settled(original, program, allowed(original.results))
    return judge(original, settled.found, precision="float64", batch=batch), settled.undecided


def equal_in_part(task: Task, program: Program, share: float) -> Equality:
    """Compare with eager on the first rows of the batch, under the same plan; not checked where none fits.

    Args:
        task: what is optimized.
        program: captured from it.
        share: how much of the batch fits.
    """
    rows = rows_of(task.batch)
    part = max(1, int(share * rows))
    small = task.with_batch(first_rows(task.batch, rows, part))
    try:
        captured = small.capture()
    except PlanError:
        return Equality()
    plan = transfer(program.plan, program.captured.graph, captured.graph)
    if plan is None:
        return Equality()
    carried = emit_plan(captured, plan, program.costs)
    eager, found = watch(small, None), watch(small, carried)
    return equal(small, carried, eager, found, f"the first {part} of {rows}")
