"""Run the optimized program against the original, from the same state and random stream."""

import copy
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.batches import arguments
from peakfold.bridge.runtime.compare import BOUND, Difference, Result, compare
from peakfold.bridge.runtime.measure import Measured, eager_step, peak_bytes, resident_bytes
from peakfold.bridge.runtime.step import Step
from peakfold.errors import UsageError

Precision = Literal["working", "float64"]


@dataclass(frozen=True)
class Target:
    """What is trained.

    Attributes:
        model: the module.
        loss_fn: ``loss_fn(model, *batch)`` gives the loss, or ``(loss, outputs)``.
        optimizer: None where gradients stay in ``.grad``.
        batch: a dict, a tuple, or one tensor.
        scaler: a gradient scaler, or None.
    """

    model: torch.nn.Module
    loss_fn: Callable[..., object]
    optimizer: torch.optim.Optimizer | None
    batch: object
    scaler: torch.amp.GradScaler | None = None


_Runner = Callable[[], tuple[object, object]]

MakeStep = Callable[[Target], Step]
"""Makes the optimized step of a target: the same plan, on a copy of the model."""


@dataclass(frozen=True)
class Equality:
    """Whether an optimized step computes what the original does.

    Attributes:
        ok: the largest error is within the bound (of working precision: every bit is the same).
        max_error: the largest error of any tensor, relative to its scale.
        bound: what it may be.
        bit_equal: whether every bit of every tensor is the same.
        dtype: ``"float64"``, or ``"working"`` for the precision of the model.
        batch: ``"full"``, or what was taken instead.
        worst: the tensor that is furthest off; empty where all are equal.
        steps: how many were run.
    """

    ok: bool
    max_error: float
    bound: float
    bit_equal: bool
    dtype: Precision
    batch: str
    worst: str
    steps: int


def verify(
    target: Target,
    make_step: MakeStep,
    *,
    steps: int = 3,
    precision: Precision = "working",
    batch: str = "full",
    seed: int = 0,
) -> Equality:
    """Run eager and the optimized step from the same state, and compare everything they leave.

    The loss and the outputs of each step; after the last, every parameter, buffer, gradient and
    optimizer state, and the random stream. Both run on copies, one after the other: the target is not
    touched, and neither is torch's random stream.

    Args:
        target: what is trained.
        make_step: makes the optimized step for a copy of the target.
        steps: how many steps are run.
        precision: the model's own, or everything in float64.
        batch: what the report says about the batch of the target.
        seed: of the random stream.

    Raises:
        UsageError: the model cannot be copied.
    """
    original = _results(target, _eager, steps, precision, seed)
    gc.collect()
    found = _results(target, _optimized(make_step), steps, precision, seed)
    return _judged(compare(original, found), precision, batch, steps)


def _judged(difference: Difference, precision: Precision, batch: str, steps: int) -> Equality:
    bound = BOUND if precision == "float64" else 0.0
    ok = difference.bit_equal or (precision == "float64" and difference.max_error <= bound)
    return Equality(
        ok, difference.max_error, bound, difference.bit_equal, precision, batch, difference.worst, steps
    )


def measured_peaks(target: Target, make_step: MakeStep, device: str = "cpu") -> tuple[Measured, Measured]:
    """Return what a steady-state step of eager and of the optimized program hold, on copies."""
    with _own_stream(0):
        mine = copied(target)
        eager = _peak(mine, _plain_eager(mine), (), device)
    with _own_stream(0):
        mine = copied(target)
        step = make_step(mine)
        optimized = _peak(mine, _called(step, mine.batch), step.compiled.binding.constants, device)
    return eager, optimized


def _peak(
    target: Target, step: Callable[[], object], constants: tuple[torch.Tensor, ...], device: str
) -> Measured:
    def resident() -> int:
        others = (*constants, *_scaler_tensors(target.scaler))
        return resident_bytes(target.model, target.optimizer, target.batch, others)

    return peak_bytes(step, resident=resident, device=device)


def _scaler_tensors(scaler: torch.amp.GradScaler | None) -> list[torch.Tensor]:
    held = () if scaler is None else (scaler._scale, scaler._growth_tracker)
    return [tensor for tensor in held if tensor is not None]


def _called(step: Step, batch: object) -> Callable[[], object]:
    args, kwargs = arguments(batch)
    return lambda: step(*args, **kwargs)


def _plain_eager(target: Target) -> Callable[[], object]:
    return eager_step(target.model, target.loss_fn, target.optimizer, target.batch, target.scaler)


def _eager(target: Target) -> _Runner:
    kept: list[object] = []

    def loss_fn(*args: object, **kwargs: object) -> object:
        result = target.loss_fn(*args, **kwargs)
        kept.append(result[1] if isinstance(result, tuple) else None)
        return result

    step = eager_step(target.model, loss_fn, target.optimizer, target.batch, target.scaler)
    return lambda: (step(), kept.pop())


def _optimized(make_step: MakeStep) -> Callable[[Target], _Runner]:
    def make(target: Target) -> _Runner:
        step = make_step(target)
        call = _called(step, target.batch)
        return lambda: (call(), step.outputs)

    return make


def _results(
    target: Target, make: Callable[[Target], _Runner], steps: int, precision: Precision, seed: int
) -> list[Result]:
    """Return everything that some steps on a copy of the target leave."""
    with _own_stream(seed):
        mine = copied(target)
        if precision == "float64":
            mine = doubled(mine)
        run = make(mine)
        torch.manual_seed(seed)
        found: list[Result] = []
        for step in range(1, steps + 1):
            found += _returned(run, step)
        return [*found, *_left(mine)]


def _returned(run: _Runner, step: int) -> Iterator[Result]:
    loss, outputs = run()
    yield Result(f"loss of step {step}", "loss", _tensor(loss))
    for i, leaf in enumerate(pytree.tree_leaves(outputs)):
        if isinstance(leaf, torch.Tensor):
            yield Result(f"output {i} of step {step}", "output", _tensor(leaf))


def _left(target: Target) -> Iterator[Result]:
    """Yield what the steps changed of the target, and the random stream."""
    named = dict(target.model.named_parameters())
    for name, parameter in named.items():
        yield Result(name, "parameter", parameter)
    for name, buffer in target.model.named_buffers():
        yield Result(name, "buffer", buffer)
    for name, parameter in _with_gradient(target, named):
        yield Result(f"{name}.grad", "gradient", _tensor(parameter.grad))
    yield from _state(target, named)
    yield Result("random stream", "random", torch.get_rng_state())
    if torch.cuda.is_available():
        yield Result("random stream of CUDA", "random", torch.cuda.get_rng_state())


def _with_gradient(
    target: Target, named: Mapping[str, torch.nn.Parameter]
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the parameters that have a ``.grad``: all without an optimizer, else those of it."""
    optimized = (
        None if target.optimizer is None else {id(parameter) for parameter in _owned(target.optimizer)}
    )
    for name, parameter in named.items():
        if parameter.grad is not None and (optimized is None or id(parameter) in optimized):
            yield name, parameter


def _owned(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _state(target: Target, named: Mapping[str, torch.nn.Parameter]) -> Iterator[Result]:
    if target.optimizer is None:
        return
    names = {id(parameter): name for name, parameter in named.items()}
    for i, parameter in enumerate(_owned(target.optimizer)):
        name = names.get(id(parameter), f"parameter {i}")
        for key, entry in target.optimizer.state.get(parameter, {}).items():
            if isinstance(entry, torch.Tensor | int | float):
                yield Result(f"{name} {key}", "state", _tensor(entry))


def _tensor(thing: object) -> torch.Tensor:
    if isinstance(thing, torch.Tensor):
        return thing.detach().clone()
    return torch.tensor(thing, dtype=torch.float64)


def copied(target: Target) -> Target:
    """Return a deep copy whose optimizer updates the copy's parameters.

    Raises:
        UsageError: the model cannot be copied.
    """
    parts = (target.model, target.loss_fn, target.optimizer, target.batch, target.scaler)
    try:
        return Target(*copy.deepcopy(parts))
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise UsageError(
            stage="verify",
            what="the model or the batch cannot be copied, so that it cannot be verified",
            expected="what copy.deepcopy accepts",
            got=str(error).splitlines()[0],
            hint="pass verify=False, or detach tensors that the model and the batch hold",
        ) from error


def doubled(target: Target) -> Target:
    """Return the target with parameters, buffers, optimizer state and batch in float64, in place.

    The step count of an optimizer stays as it is.
    """
    target.model.double()
    state = target.optimizer.state if target.optimizer is not None else {}
    for entries in state.values():
        for key, entry in entries.items():
            if key != "step":
                entries[key] = _double(entry)
    return replace(target, batch=pytree.tree_map(_double, target.batch))


def _double(leaf: object) -> object:
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


@contextmanager
def _own_stream(seed: int) -> Iterator[None]:
    """Run with a random stream of its own, and leave the user's as it was."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
