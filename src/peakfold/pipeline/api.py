"""The public calls of the package."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from peakfold.bridge.runtime.home import Home
from peakfold.bridge.runtime.load import load as load_step
from peakfold.bridge.runtime.step import Step
from peakfold.errors import UsageError
from peakfold.ir.text import planned_for
from peakfold.pipeline.batch import largest_batch as largest
from peakfold.pipeline.forecast import estimate as estimate_task
from peakfold.pipeline.optimize import Outcome, optimize
from peakfold.pipeline.request import Request, request
from peakfold.pipeline.task import Task
from peakfold.report.json import from_json
from peakfold.report.model import Estimate, Report, Texts
from peakfold.report.progress import Progress, silent
from peakfold.workloads import Target

LossFn = Callable[..., Any]


def optimize_step(
    model: torch.nn.Module,
    loss_fn: LossFn,
    optimizer: torch.optim.Optimizer | None,
    batch: object,
    memory: str | float | None = None,
    latency: str | float | None = None,
    time_budget: float = 60,
    iterations: int | None = None,
    seed: int = 0,
    rng: str = "eager",
    verify: bool | str = True,
    *,
    scaler: torch.amp.GradScaler | None = None,
    clip_grad_norm: float | None = None,
    rewrite: bool = True,
    offload: str | None = None,
    host_memory: str | float | None = None,
    fission: bool = False,
    rounding: bool = False,
    keep_constants: bool = False,
    arena_holds: str = "step",
    progress: Progress = silent,
) -> Step:
    """Return a step that replaces ``loss.backward(); optimizer.step(); optimizer.zero_grad()``.

    Args:
        model: the module; updated in place by each step.
        loss_fn: ``loss_fn(model, *batch)`` (``**batch`` for a dict) returns the loss or (loss, outputs).
        optimizer: None leaves gradients in ``.grad``, added to what is there.
        batch: one batch, in the form of those to come.
        memory: budget of the peak: bytes, ``"4GiB"``, ``"40%"`` of eager's, ``"fit"``; None for free.
            ``"arena:4GiB"`` is a budget of the arena that the step then runs in.
        latency: most time over eager's, 1.10 for at most 10 % slower; None for free. Alone, it makes
            memory what is minimized; memory alone minimizes time; neither gives the fastest plan.
        time_budget: wall seconds of the search.
        iterations: steps of the search, for a plan that depends on the seed alone.
        seed: of the search.
        rng: ``"eager"``: the numbers that eager draws. ``"counter"``: numbers that are made from a key of
            the step, the operator and the element, so that no plan has to keep or order them; eager is
            compared under the same.
        verify: run both programs, compare and measure, unless the very same program was proved before
            (same weights, batch and machine); ``"again"``: also then.
        scaler: a gradient scaler around loss and update.
        clip_grad_norm: clip gradients to this total norm before the update.
        rewrite: rewrite the graph first, where that raises neither peak nor time and keeps every bit.
        offload: where values may wait outside the device: ``"none"``, ``"host"`` or a folder; None for
            ``"none"`` on a CPU, whose memory is the host's, and ``"host"`` elsewhere.
        host_memory: most bytes there; None for what is free.
        fission: do regions in parts where that pays. A sum over parts rounds otherwise than a whole one:
            the result is then held to float64, and to twice eager's own rounding, not to every bit.
        rounding: also use rewrites after which sums are rounded in another order, where they are faster as
            measured; results are then held to float64 (1e-9) and to twice eager's own error.
        keep_constants: compute what no input has a part in once, when the step is made, and keep it, also
            where that raises the peak; within the budget. Left out, it is done where the peak stays.
        arena_holds: with ``memory="arena:.."``: ``"step"``, the arena is for what the step allocates;
            ``"all"``, for parameters, buffers, optimizer state and the batch too. These keep their
            objects, and their bytes move there once; `Step.place` gives the batch in the arena.
        progress: told where the work is.

    Raises:
        UsageError: an argument cannot be read.
        CaptureError: the program cannot be captured as one graph.
        InfeasibleError: the limits cannot be kept; says the lowest peak found and a proven bound.
        NotEqualError: the optimized program computes something else.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> step = optimize_step(model, lambda m, x: m(x).square().mean(), optimizer, (torch.ones(32, 8),),
        ...                      time_budget=1)
        >>> float(step(torch.ones(32, 8))) > float(step(torch.ones(32, 8)))
        True
    """
    name = type(model).__name__
    limits = (memory, latency, time_budget, iterations, seed, rng, verify)
    where = (None, name, rewrite, offload, host_memory, fission, rounding)
    last = (arena_holds, None, None, keep_constants)
    asked = request(*limits, _device(model), *where, *last)
    task = Task(model, loss_fn, optimizer, batch, scaler, clip_grad_norm, keyed=asked.is_keyed)
    return _checked(optimize(task, asked, progress))


def optimize_inference(
    module: torch.nn.Module,
    inputs: object,
    memory: str | float | None = None,
    latency: str | float | None = None,
    time_budget: float = 60,
    iterations: int | None = None,
    seed: int = 0,
    verify: bool | str = True,
    *,
    rewrite: bool = True,
    offload: str | None = None,
    host_memory: str | float | None = None,
    fission: bool = False,
    rounding: bool = False,
    keep_constants: bool = False,
    arena_holds: str = "step",
    progress: Progress = silent,
) -> Step:
    """Return a function that computes ``module(*inputs)`` without gradients, within a budget.

    Args:
        module: the module, in the mode that it is to run in.
        inputs: a tuple of positions, a dict of keywords, or one tensor.
        memory: budget of the peak, as in `optimize_step`.
        latency: most time over eager's, as in `optimize_step`.
        time_budget: wall seconds of the search.
        iterations: steps of the search, for a plan that depends on the seed alone.
        seed: of the search.
        verify: as in `optimize_step`.
        rewrite: as in `optimize_step`.
        offload: as in `optimize_step`.
        host_memory: as in `optimize_step`.
        fission: as in `optimize_step`.
        rounding: as in `optimize_step`.
        keep_constants: as in `optimize_step`.
        arena_holds: as in `optimize_step`.
        progress: told where the work is.

    Raises:
        UsageError, CaptureError, InfeasibleError, NotEqualError: as in `optimize_step`.

    Example:
        >>> fn = optimize_inference(torch.nn.Linear(4, 2), (torch.ones(3, 4),), time_budget=1)
        >>> fn(torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """
    name = type(module).__name__
    limits = (memory, latency, time_budget, iterations, seed, "eager", verify)
    where = (None, name, rewrite, offload, host_memory, fission, rounding)
    last = (arena_holds, None, None, keep_constants)
    asked = request(*limits, _device(module), *where, *last)
    return _checked(optimize(Task(module, None, None, inputs), asked, progress))


def optimize_target(target: Target, asked: Request, progress: Progress = silent) -> Outcome:
    """Optimize a target of the command line; a result that is not equal is reported, not raised."""
    if asked.plan is not None:
        planned_for(asked.plan)
    return optimize(Task.of(target, asked.is_keyed), asked, progress)


def estimate_target(target: Target, device: str, progress: Progress = silent, name: str = "") -> Estimate:
    """Estimate a target of the command line."""
    return estimate_task(Task.of(target), device, progress, name)


def estimate(
    model: torch.nn.Module, loss_fn: LossFn, optimizer: torch.optim.Optimizer | None, batch: object
) -> Estimate:
    """Return what eager's step will take, by kind, with its own error; nothing is run or allocated.

    Raises:
        CaptureError: the program cannot be captured.

    Example:
        >>> model = torch.nn.Linear(8, 1, device="meta")
        >>> batch = (torch.ones(32, 8, device="meta"),)
        >>> found = estimate(model, lambda m, x: m(x).sum(), torch.optim.SGD(model.parameters()), batch)
        >>> found.components["parameters"]
        36
    """
    return estimate_task(Task(model, loss_fn, optimizer, batch), _device(model))


def largest_batch(
    model: torch.nn.Module,
    loss_fn: LossFn,
    optimizer: torch.optim.Optimizer | None,
    batch: object,
    memory: str | float = "fit",
    *,
    progress: Progress = silent,
) -> int:
    """Return the largest batch for which a plan within a budget is found; nothing is run.

    Args:
        model: the module; it may be on the meta device.
        loss_fn: as in `optimize_step`.
        optimizer: as in `optimize_step`.
        batch: a batch of any size, whose tensors have it as their first dimension.
        memory: bytes, a size, or ``"fit"``: what the device has free.
        progress: told where it is.

    Raises:
        UsageError: the batch or the budget cannot be used.
        InfeasibleError: not even a batch of one fits.
    """
    return largest(Task(model, loss_fn, optimizer, batch), memory, progress=progress)


def load(
    path: str | Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    loss_fn: Callable[..., object] | None = None,
) -> Step:
    """Return a saved step, bound to a model and an optimizer of the kind that it was made for.

    Args:
        path: of the file that ``step.save`` wrote.
        model: in the place of the one that was captured.
        optimizer: likewise.
        loss_fn: what was run on the model; it is not run again, but compared with what it was, and so is
            what it closes over. Without it, only a function that a loaded module names is compared.

    Raises:
        CacheError: the file is missing, corrupt or of another version.
        PlanError: it is for another model, or the code or what it reads was changed.
    """
    return load_step(Path(path), model, optimizer, loss_fn=loss_fn, report_of=_report_of)


def share_arena(*steps: Step) -> int:
    """Let several steps that run in turn have one arena on the device; return its bytes.

    It has room for what passes within any of the steps, and above that for the results of any of them: a
    result of one that you still hold when the next one runs stays as it is, and the next one's gets a spare
    place if it needs the same bytes. What a step holds for you (``arena_holds="all"``) stays its own; the
    bytes of that count too. Steps in several threads wait for each other.

    Args:
        steps: made with ``memory="arena:.."``; none of them may be running.

    Raises:
        UsageError: a step has no arena, or is no step; or they are on several devices.

    Example:
        >>> def net(width):
        ...     layers = torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)
        ...     return torch.nn.Sequential(*layers)
        >>> x = torch.ones(4, 4)
        >>> steps = [optimize_inference(net(width), (x,), "arena:1MiB", time_budget=1) for width in (4, 64)]
        >>> share_arena(*steps)
        1088
    """
    if not steps:
        raise _cannot_share("there is no step to share an arena")
    for at, step in enumerate(steps, 1):
        if not isinstance(step, Step):
            raise _cannot_share("what is to share an arena is no step", at, len(steps), repr(step))
        if step.arena is None:
            raise _cannot_share("a step has no arena to share", at, len(steps))
    devices = {step.arena.layout.device for step in steps if step.arena is not None}
    if len(devices) > 1:
        raise _cannot_share("an arena is on one device", got=", ".join(sorted(devices)))
    home = Home(shared=True)
    for step in steps:
        step.move_to(home)
    return home.nbytes


def _cannot_share(what: str, at: int = 0, count: int = 0, got: str = "") -> UsageError:
    return UsageError(
        stage="arena",
        what=what,
        where=f"step {at} of {count}" if at else "",
        expected="steps that were made with memory='arena:SIZE'",
        got=got,
    )


def _report_of(texts: Mapping[str, str]) -> Report:
    """Return the report of a saved step, and with it the program that it is about."""
    said = Texts(texts["plan.txt"], texts["step.py"], texts["graph.txt"])
    return replace(from_json(texts["report.json"], "report.json"), texts=said)


def _checked(outcome: Outcome) -> Step:
    outcome.require_equal()
    if outcome.step is None:
        raise UsageError(
            stage="options",
            what="the step is on the meta device: there is nothing that could run",
            expected="a model and a batch with numbers",
            hint="peakfold.estimate and peakfold.largest_batch need none",
        )
    return outcome.step


def _device(model: torch.nn.Module) -> str:
    first = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
    return "cpu" if first is None or first.device.type == "meta" else str(first.device)
