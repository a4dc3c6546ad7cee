"""Measure a step: the most bytes that it holds at once, and the seconds that it takes.

Bytes and seconds are never measured in the same run: recording allocations slows a step down.
"""

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.profiler import record_function
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.batches import arguments
from peakfold.bridge.runtime import heap
from peakfold.bridge.runtime.recording import recording

MARK = "peakfold:mark"
BEGIN = "peakfold:begin"

Step = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """What one steady-state step held.

    Attributes:
        peak_bytes: the most bytes allocated at once, those before the step included.
        before_bytes: bytes allocated before the step.
        events: signed bytes of each allocation and release in the step, in order; empty on CUDA.
    """

    peak_bytes: int
    before_bytes: int
    events: tuple[int, ...] = ()


def eager_step(
    model: torch.nn.Module,
    loss_fn: Callable[..., object],
    optimizer: torch.optim.Optimizer | None,
    batch: object,
    scaler: torch.amp.GradScaler | None = None,
    clip_grad_norm: float | None = None,
) -> Callable[[], torch.Tensor]:
    """Return the loop body that users write, as a function of nothing that returns the loss.

    Without an optimizer, the gradients stay in ``.grad``, added to what is there. With a total norm to
    clip to, gradients are clipped before the update, after they are unscaled.
    Under autocast each call is as one in a context of its own: no weight that was cast before an update
    is taken after it.
    """
    args, kwargs = arguments(batch)

    def step() -> torch.Tensor:
        torch.clear_autocast_cache()
        result = loss_fn(model, *args, **kwargs)
        loss = result[0] if isinstance(result, tuple) else result
        assert isinstance(loss, torch.Tensor)
        scaled = loss if scaler is None else scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]
        if clip_grad_norm is not None:
            if scaler is not None and optimizer is not None:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_grad_norm)
        if optimizer is not None:
            _update(optimizer, scaler)
        return loss.detach()

    return step


def _update(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None) -> None:
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()


def resident_bytes(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batch: object,
    others: Iterable[torch.Tensor] = (),
) -> int:
    """Return the bytes of every distinct storage that model, optimizer and batch hold between steps.

    Parameters, buffers, ``.grad`` where it is set, optimizer state and the batch. The step count of
    Adam is a tensor of 4 bytes a parameter and counts too. ``others`` are what lives beside them: the
    tensors of a gradient scaler, the constants of a program.

    Example:
        >>> linear = torch.nn.Linear(3, 2)
        >>> resident_bytes(linear, None, torch.zeros(4, 3))
        80
    """
    found: dict[tuple[str, int], int] = {}
    for tensor in (*_held_tensors(model, optimizer, batch), *others):
        storage = tensor.untyped_storage()
        found[str(tensor.device), storage.data_ptr() or id(storage)] = storage.nbytes()
    return sum(found.values())


def _held_tensors(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, batch: object
) -> Iterator[torch.Tensor]:
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
    yield from model.buffers()
    state = list(optimizer.state.values()) if optimizer is not None else []
    for leaf in pytree.tree_leaves((state, batch)):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def peak_bytes(
    step: Step,
    warmup: int = 2,
    *,
    resident: int | Callable[[], int] = 0,
    device: str = "cpu",
    lent: Callable[[], Iterable[torch.Tensor]] = tuple,
) -> Measured:
    """Run a step until it is steady, then once more, and return the most bytes it held.

    The truth is ``resident`` plus what comes and goes in the step: on a CPU the running sum of the profiler's
    memory events, on CUDA the allocator's own count. Temporaries that a library takes by ``malloc`` behind
    torch's back are not seen.

    Args:
        step: the step; what it returns is dropped before the measurement ends.
        warmup: steps run before, so that the optimizer's state exists.
        resident: bytes that live on the device before the step, or a function that says so after
            the warm-up (`resident_bytes`).
        device: ``"cpu"`` or ``"cuda"``.
        lent: gives the tensors from before the step whose bytes it gives back for a while; on a CPU
            their bytes are taken anew first, since the profiler does not see the end of older ones.
    """
    for _ in range(warmup):
        step()
    gc.collect()
    before = resident() if callable(resident) else resident
    if torch.device(device).type == "cuda":
        return _cuda_peak(step, before, device)
    events = tuple(nbytes for name, nbytes in _events(step, lent()) if name != MARK)
    return Measured(before + max(accumulate(events), default=0), before, events)


def _cuda_peak(step: Step, resident: int, device: str) -> Measured:
    """Count what lives beside what was there: others' tensors on the device are no part of the step."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return Measured(resident + torch.cuda.max_memory_allocated(device) - before, resident)


def mark() -> None:
    """Mark a place in the stream of memory events, for `live_curve`."""
    with record_function(MARK):
        pass


def live_curve(step: Step, before: int = 0, lent: Iterable[torch.Tensor] = ()) -> tuple[int, ...]:
    """Run a step that calls `mark`, and return the bytes that live at each mark, ``before`` included.

    ``lent`` is as in `peak_bytes`.

    Example:
        >>> def step():
        ...     kept = torch.empty(256)
        ...     mark()
        ...     del kept
        ...     mark()
        >>> live_curve(step)
        (1024, 0)
    """
    live, curve = before, []
    for name, nbytes in _events(step, lent):
        live += nbytes
        if name == MARK:
            curve.append(live)
    return tuple(curve)


def _events(step: Step, lent: Iterable[torch.Tensor]) -> list[tuple[str, int]]:
    """Return (name, signed bytes) of the memory events and marks of one step, in order."""
    with recording() as profiler:
        for tensor in lent:
            _renew(tensor)
        with record_function(BEGIN):
            pass
        step()
    results = profiler.profiler.kineto_results
    kept = [e for e in results.events() if e.name() in ("[memory]", MARK, BEGIN)]
    kept.sort(key=lambda event: event.start_ns())
    begin = next(at for at, event in enumerate(kept) if event.name() == BEGIN)
    return [(e.name(), e.nbytes() if e.name() == "[memory]" else 0) for e in kept[begin + 1 :]]


def _renew(tensor: torch.Tensor) -> None:
    """Give a tensor's storage other bytes with the same content."""
    storage = tensor.untyped_storage()
    if not storage.resizable():
        return
    content = torch.empty(0, dtype=torch.uint8).set_(storage).clone()
    storage.resize_(0)
    storage.resize_(content.nbytes)
    torch.empty(0, dtype=torch.uint8).set_(storage).copy_(content)


def interleaved_cpu_seconds(
    variants: Mapping[str, Step],
    repeats: int = 5,
    warmup: int = 1,
    *,
    threads: int = 1,
    budget_seconds: float | None = None,
    progress: Callable[[int], None] | None = None,
    wall: bool = False,
) -> dict[str, float]:
    """Return the least CPU seconds of each variant, all run in turn so that noise hits all alike.

    Args:
        variants: steps by name.
        repeats: rounds; each runs every variant once, in an order that turns.
        warmup: rounds that do not count.
        threads: threads of torch meanwhile; with 1, the thread is pinned to one core.
        budget_seconds: no round starts after so many wall seconds, once one has counted.
        progress: called with the number of each round that counts, before it.
        wall: measure wall seconds, on all cores: for programs whose copies run beside the computation.
    """
    best = dict.fromkeys(variants, float("inf"))
    names = list(variants)
    start = time.monotonic()
    with _threads(threads, pin=not wall), _quick_collections(), heap.kept():
        for round_ in range(-warmup, repeats):
            spent = time.monotonic() - start
            if round_ > 0 and budget_seconds is not None and spent > budget_seconds:
                break
            if progress is not None and round_ >= 0:
                progress(round_)
            for i in range(len(names)):
                name = names[(i + round_) % len(names)]
                seconds = _seconds(variants[name], time.perf_counter if wall else time.process_time)
                if round_ >= 0:
                    best[name] = min(best[name], seconds)
    return best


def _seconds(step: Step, clock: Callable[[], float]) -> float:
    gc.collect()
    start = clock()
    step()
    return clock() - start


@contextmanager
def _quick_collections() -> Iterator[None]:
    """Let the collections between steps look only at what is made from here on."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _threads(count: int, pin: bool = True) -> Iterator[None]:
    """Run torch on ``count`` threads; a single one is pinned to one core where the system can."""
    threads = torch.get_num_threads()
    pin = pin and count == 1 and hasattr(os, "sched_setaffinity")
    cores = os.sched_getaffinity(0) if pin else set()
    torch.set_num_threads(count)
    if pin:
        os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if pin:
            os.sched_setaffinity(0, cores)
