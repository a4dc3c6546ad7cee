"""Run the optimized program against the original, from the same state and random stream."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.batches import arguments, flatten
from peakfold.bridge.capture.keyed import Keyed
from peakfold.bridge.capture.widened import Widened
from peakfold.bridge.runtime.arena import Use
from peakfold.bridge.runtime.begun import Begun
from peakfold.bridge.runtime.compare import BOUND, Result, compare
from peakfold.bridge.runtime.measure import Measured, eager_step, peak_bytes, resident_bytes
from peakfold.bridge.runtime.step import Step
from peakfold.bridge.runtime.still import still
from peakfold.bridge.runtime.target import Target, copied, doubled

Precision = Literal["working", "float64"]


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
    both = (observe(target, make, steps=steps, precision=precision, seed=seed) for make in (None, make_step))
    return judge(next(both), next(both), precision=precision, batch=batch)


@dataclass(frozen=True)
class Observed:
    """Everything that some steps of a program left.

    Attributes:
        results: loss and outputs of each step; then parameters, buffers, gradients, optimizer state and
            the random stream.
        steps: how many were run.
        measured: what the last step held; None where it was not measured.
        use: what the last step asked of its arena; None without one.
    """

    results: tuple[Result, ...]
    steps: int
    measured: Measured | None = None
    use: Use | None = None

    @property
    def is_finite(self) -> bool:
        """Whether no loss is NaN or infinite."""
        return all(bool(r.tensor.isfinite().all()) for r in self.results if r.role == "loss")


def observe(
    target: Target,
    make_step: MakeStep | None,
    *,
    steps: int = 3,
    precision: Precision = "working",
    seed: int = 0,
    measure: bool = False,
    device: str = "cpu",
    widened: bool = False,
) -> Observed:
    """Run some steps on a copy of a target and return what they leave; torch's random stream is untouched.

    Without an optimizer, gradients that the first step begins without begin anew in each; their sum is left.

    Args:
        target: what is trained.
        make_step: makes the optimized step for a copy of the target; None for eager.
        steps: how many steps are run.
        precision: the model's own, or everything in float64.
        seed: of the random stream.
        measure: take the most bytes that the last step holds.
        device: where it runs.
        widened: what the code casts to a narrower floating type is cast to float64; of eager alone.

    Raises:
        UsageError: the model cannot be copied.
    """
    with _own_stream(seed):
        mine = copied(target)
        if precision == "float64":
            mine = doubled(mine)
        running, mine = _runner(mine, make_step)
        begun = Begun.of(mine.model, mine.optimizer)
        torch.manual_seed(seed)
        kept: list[tuple[object, object]] = []
        with Widened() if widened else nullcontext():
            for _ in range(steps - measure):
                begun.clear()
                kept.append(still(running.apart(), mine.model, _leaves(mine.batch)))
        begun.clear()
        measured = None
        if measure:
            measured = peak_bytes(
                lambda: kept.append(running.run()),
                0,
                resident=lambda: _resident(mine, running.others) - running.held_bytes + running.arena_bytes,
                device=device,
                lent=lambda: _lent(mine) if running.lends else (),
            )
        begun.leave_sums()
        results = [result for i, pair in enumerate(kept, 1) for result in _returned(pair, i)]
        return Observed((*results, *_left(mine)), steps, measured, running.use)


@dataclass(frozen=True)
class _Running:
    """What runs one step, and what it holds beside the target: constants, moved tensors, an arena."""

    run: _Runner
    others: tuple[torch.Tensor, ...] = ()
    lends: bool = False
    step: Step | None = None

    @property
    def arena_bytes(self) -> int:
        return 0 if self.step is None else self.step.arena_bytes

    @property
    def held_bytes(self) -> int:
        return 0 if self.step is None else self.step.held_bytes

    @property
    def use(self) -> Use | None:
        arena = None if self.step is None else self.step.arena
        return None if arena is None else arena.use

    def apart(self) -> tuple[object, object]:
        """Run one step; return its results outside its arena, where the next one may have its own."""
        results = self.run()
        if not self.arena_bytes:
            return results
        copied_: tuple[object, object] = pytree.tree_map_only(torch.Tensor, torch.clone, results)
        return copied_


def _runner(target: Target, make_step: MakeStep | None) -> tuple[_Running, Target]:
    """Return what runs a step, and the target with the batch where the step has it."""
    if make_step is None:
        return _Running(_with_key(_eager(target)) if target.keyed else _eager(target)), target
    step = make_step(target)
    constants, inputs = step.compiled.binding.constants, step.compiled.graph.input
    lends = any(gap.value.node in inputs for gap in step.plan.offload)
    args, kwargs = arguments(target.batch)
    target = replace(target, batch=step.place(*args, **kwargs))
    args, kwargs = arguments(target.batch)
    if target.loss_fn is None:
        return _Running(lambda: (None, step(*args, **kwargs)), constants, lends, step), target
    return _Running(lambda: (step(*args, **kwargs), step.outputs), constants, lends, step), target


def _lent(target: Target) -> tuple[torch.Tensor, ...]:
    """Tensors of the user that a program may move for a while."""
    state = () if target.optimizer is None else pytree.tree_leaves(list(target.optimizer.state.values()))
    held = (*target.model.parameters(), *target.model.buffers(), *state)
    return tuple(leaf for leaf in held if isinstance(leaf, torch.Tensor))


def _resident(target: Target, others: tuple[torch.Tensor, ...]) -> int:
    scaler = target.scaler
    scales = () if scaler is None else (scaler._scale, scaler._growth_tracker)
    held = (*others, *(tensor for tensor in scales if tensor is not None))
    return resident_bytes(target.model, target.optimizer, target.batch, held)


def judge(
    original: Observed, found: Observed, *, precision: Precision = "working", batch: str = "full"
) -> Equality:
    """Return whether two observations from the same state agree.

    Args:
        original: of eager.
        found: of the optimized program.
        precision: the one that both ran in.
        batch: what the report says about the batch.
    """
    difference = compare(original.results, found.results)
    bound = BOUND if precision == "float64" else 0.0
    ok = difference.bit_equal or (precision == "float64" and difference.max_error <= bound)
    return Equality(
        ok,
        difference.max_error,
        bound,
        difference.bit_equal,
        precision,
        batch,
        difference.worst,
        original.steps,
    )


def _eager(target: Target) -> _Runner:
    if target.loss_fn is None:
        return _plain_inference(target)
    original = target.loss_fn
    kept: list[object] = []

    def loss_fn(*args: object, **kwargs: object) -> object:
        result = original(*args, **kwargs)
        kept.append(result[1] if isinstance(result, tuple) else None)
        return result

    step = eager_step(
        target.model, loss_fn, target.optimizer, target.batch, target.scaler, target.clip_grad_norm
    )
    return lambda: (step(), kept.pop())


def _with_key(run: _Runner) -> _Runner:
    def keyed() -> tuple[object, object]:
        with Keyed():
            return run()

    return keyed


def _plain_inference(target: Target) -> _Runner:
    args, kwargs = arguments(target.batch)

    def run() -> tuple[object, object]:
        with torch.no_grad():
            return None, target.model(*args, **kwargs)

    return run


def _returned(pair: tuple[object, object], step: int) -> Iterator[Result]:
    loss, outputs = pair
    if isinstance(loss, torch.Tensor):
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
        yield Result(name, "buffer", buffer, is_cache=not _is_saved(target.model, name))
    for name, leaf in (*named.items(), *_leaves(target.batch)):
        if leaf.is_leaf and leaf.grad is not None:
            yield Result(f"{name}.grad", "gradient", _tensor(leaf.grad))
    yield from _state(target, named)
    yield Result("random stream", "random", torch.get_rng_state())
    if torch.cuda.is_available():
        yield Result("random stream of CUDA", "random", torch.cuda.get_rng_state())


def _is_saved(model: torch.nn.Module, name: str) -> bool:
    path, _, key = name.rpartition(".")
    return key not in model.get_submodule(path)._non_persistent_buffers_set


def _leaves(batch: object) -> list[tuple[str, torch.Tensor]]:
    flat = flatten(batch)
    named = zip(flat.names, flat.leaves, strict=True)
    return [(name, leaf) for name, leaf in named if isinstance(leaf, torch.Tensor)]


def _state(target: Target, named: Mapping[str, torch.nn.Parameter]) -> Iterator[Result]:
    if target.optimizer is None:
        return
    names = {id(parameter): name for name, parameter in named.items()}
    owned = (parameter for group in target.optimizer.param_groups for parameter in group["params"])
    for i, parameter in enumerate(owned):
        name = names.get(id(parameter), f"parameter {i}")
        for key, entry in target.optimizer.state.get(parameter, {}).items():
            if isinstance(entry, torch.Tensor | int | float):
                yield Result(f"{name} {key}", "state", _tensor(entry))


def _tensor(thing: object) -> torch.Tensor:
    if isinstance(thing, torch.Tensor):
        return thing.detach().clone()
    return torch.tensor(thing, dtype=torch.float64)


@contextmanager
def _own_stream(seed: int) -> Iterator[None]:
    """Run with a random stream of its own, and leave the user's as it was."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
