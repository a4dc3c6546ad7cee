"""A variant of a step on copies of its own: its peak, and whether it computes what eager does."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.runtime.compare import Difference, Result, Role, compare
from peakfold.bridge.runtime.measure import interleaved_cpu_seconds, peak_bytes
from peakfold.pipeline.task import Task
from peakfold.report.progress import Progress

Call = Callable[[], object]
Make = Callable[[Task], Call]

STEPS = 2
ROUNDING = 1e-3
"""The largest error after two steps, relative to the scale of its tensor, that is put down to rounding."""
LONGEST = 2000


@dataclass(frozen=True)
class Observed:
    """One variant, run some times.

    Attributes:
        call: one more step of it.
        peak_bytes: the most bytes in the last.
        left: loss, parameters, buffers and optimizer state after the one before it.
    """

    call: Call
    peak_bytes: int
    left: Sequence[Result]

    def against(self, original: "Observed") -> Difference:
        """Return how far it is from another variant that began from the same state."""
        return compare(original.left, self.left)


def observe(
    make: Make,
    task: Task,
    seed: int = 0,
    original: Observed | None = None,
    constants: Sequence[torch.Tensor] = (),
    arena: int = 0,
    ignored: Collection[Role] = (),
    steps: int = STEPS,
) -> tuple[Observed, Difference]:
    """Run a variant on copies of a task, and compare it with the original (with itself where None).

    Args:
        make: makes the step of a variant from a task of its own.
        task: is not touched.
        seed: of the random stream.
        original: eager, observed with the same seed.
        constants: of its program, which it holds beside the task.
        arena: bytes of it, where the program runs in one.
        ignored: what is left is not compared.
        steps: before that whose bytes are counted; what they leave is compared.
    """
    with torch.random.fork_rng():
        mine = task.clone()
        call = make(mine)
        torch.manual_seed(seed)
        losses = [_loss(call(), step) for step in range(steps)]
        left = [*losses, *(result for result in _left(mine) if result.role not in ignored)]
        difference = compare(left if original is None else original.left, left)
        kept = [Result(r.name, r.role, r.tensor.detach().clone()) for r in left] if original is None else ()
        measured = peak_bytes(
            call, warmup=0, resident=lambda: mine.resident(constants) + arena, device=task.device
        )
    return Observed(call, measured.peak_bytes, kept), difference


def is_equal(difference: Difference) -> bool:
    """Whether nothing but rounding differs."""
    return difference.bit_equal or difference.max_error <= ROUNDING


def _loss(loss: object, step: int) -> Result:
    assert isinstance(loss, torch.Tensor)
    return Result(f"loss of step {step}", "loss", loss.detach().clone())


def _left(task: Task) -> Iterator[Result]:
    for name, parameter in task.model.named_parameters():
        yield Result(name, "parameter", parameter)
    for name, buffer in task.model.named_buffers():
        yield Result(name, "buffer", buffer)
    state = task.optimizer.state_dict() if task.optimizer is not None else {}
    for path, leaf in pytree.tree_flatten_with_path(state.get("state", {}))[0]:
        if isinstance(leaf, torch.Tensor):
            yield Result(f"optimizer state {pytree.keystr(path)}", "state", leaf)


def timed(calls: Mapping[str, Call], repeats: int, threads: int, progress: Progress) -> dict[str, float]:
    """Return the least CPU seconds of each call; every round runs all, in an order that turns.

    Args:
        calls: steps that have run before.
        repeats: rounds.
        threads: of torch; one is pinned to a core.
        progress: told after each round.
    """
    return interleaved_cpu_seconds(
        calls,
        repeats,
        warmup=0,
        threads=threads,
        progress=lambda done: progress(
            "time", done / repeats, f"round {done + 1} of {repeats}, {len(calls)} variants"
        ),
    )


def message(error: BaseException) -> str:
    """Return what a row says of an exception: its type and its text, shortened.

    Example:
        >>> message(ValueError("too small"))
        'ValueError: too small'
    """
    return f"{type(error).__name__}: {error}"[:LONGEST]
