"""Running both programs: their peaks, their seconds, and whether they compute the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.batches import arguments
from peakfold.bridge.runtime.compare import BOUND
from peakfold.bridge.runtime.compiled import compiled
from peakfold.bridge.runtime.measure import eager_step, interleaved_cpu_seconds, peak_bytes
from peakfold.bridge.runtime.step import Step
from peakfold.bridge.runtime.verify import Target, copied, doubled, verify
from peakfold.errors import PeakfoldError
from peakfold.pipeline.batch import first_rows, rows_of
from peakfold.pipeline.program import Program, emit_plan
from peakfold.pipeline.task import Task
from peakfold.pipeline.transfer import transfer
from peakfold.report.model import Equality

STEPS = 3
REPEATS = 5
TIMING_SECONDS = 60.0


@dataclass(frozen=True)
class Figures:
    """What was measured of one program; None where it was not."""

    peak_bytes: int | None = None
    cpu_seconds: float | None = None


def make_step(task: Task, program: Program) -> Step:
    """Return the step of a program on copies of the objects that it was captured from.

    Its guards are those that do not ask for the very objects of the capture.
    """
    made = compiled(
        program.captured,
        program.plan,
        program.source,
        task.model,
        task.optimizer,
        task.batch,
        inference=task.loss_fn is None,
    )
    return Step(task.subject, replace(made, guards=made.portable))


def eager_call(task: Task) -> Callable[[], object]:
    """Return what a user runs today, as a function of nothing."""
    if task.loss_fn is not None:
        return eager_step(task.model, task.loss_fn, task.optimizer, task.batch, task.scaler)
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


def peak(task: Task, program: Program | None) -> int:
    """Return the measured peak of a program, of eager where it is None, in bytes; on copies."""
    with torch.random.fork_rng():
        mine = task.clone()
        call = eager_call(mine) if program is None else planned_call(mine, program)
        constants = () if program is None else program.captured.binding.constants
        return peak_bytes(call, resident=lambda: mine.resident(constants), device=task.device).peak_bytes


def seconds(task: Task, programs: Mapping[str, Program]) -> dict[str, float]:
    """Return CPU seconds of ``"eager"`` and of each program, interleaved in one run; on copies."""
    with torch.random.fork_rng():
        variants = {"eager": eager_call(task.clone())}
        variants |= {name: planned_call(task.clone(), program) for name, program in programs.items()}
        threads = torch.get_num_threads()
        return interleaved_cpu_seconds(
            variants, REPEATS, threads=threads, budget_seconds=TIMING_SECONDS * len(variants)
        )


def equal(task: Task, program: Program, batch: str = "full") -> Equality:
    """Compare a program with eager over several steps, in the working precision and in float64.

    Args:
        task: what is optimized.
        program: captured from this task, or from one whose program has the same names.
        batch: what the report says about the batch.
    """
    if task.loss_fn is None:
        return _equal_inference(task, program)
    target = Target(task.model, task.loss_fn, task.optimizer, task.batch, task.scaler)
    working = verify(
        target,
        lambda copy_: make_step(_task(task, copy_), program),
        steps=STEPS,
        precision="working",
        batch=batch,
    )
    double = _double_program(task, target, program)
    if double is None:
        return Equality(working.ok, working.max_error, working.bound, batch, STEPS, working.bit_equal)
    exact = verify(
        target,
        lambda copy_: make_step(_task(task, copy_), double),
        steps=STEPS,
        precision="float64",
        batch=batch,
    )
    ok = working.bit_equal and exact.ok
    worst = max(exact.max_error, 0.0 if working.bit_equal else working.max_error)
    return Equality(ok, worst, exact.bound, batch, STEPS, working.bit_equal)


def _task(task: Task, target: Target) -> Task:
    return replace(
        task, model=target.model, optimizer=target.optimizer, batch=target.batch, scaler=target.scaler
    )


def _double_program(task: Task, target: Target, program: Program) -> Program | None:
    """Return the same plan for the program in float64; None where it cannot be had."""
    try:
        captured = _task(task, doubled(copied(target))).capture()
        plan = transfer(program.plan, program.captured.graph, captured.graph)
        return None if plan is None else emit_plan(captured, plan, program.costs)
    except PeakfoldError:
        return None


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
    captured = small.capture()
    plan = transfer(program.plan, program.captured.graph, captured.graph)
    if plan is None:
        return Equality()
    return equal(small, emit_plan(captured, plan, program.costs), f"the first {part} of {rows}")


def _equal_inference(task: Task, program: Program) -> Equality:
    with torch.random.fork_rng():
        mine, other = task.clone(), task.clone()
        torch.manual_seed(0)
        expected = pytree.tree_leaves(eager_call(mine)())
        torch.manual_seed(0)
        found = pytree.tree_leaves(planned_call(other, program)())
    same = len(expected) == len(found) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(expected, found, strict=True)
    )
    return Equality(same, 0.0 if same else float("inf"), BOUND, "full", 1, same)
