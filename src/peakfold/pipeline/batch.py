"""The largest batch that fits a budget."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.runtime.measure import resident_bytes
from peakfold.budget import parse_memory
from peakfold.cost import roofline
from peakfold.errors import InfeasibleError, UsageError
from peakfold.pipeline.machine import free_bytes
from peakfold.pipeline.task import Task
from peakfold.plan.schedule import planner
from peakfold.report.progress import Progress, silent

RULER = "rtx3090"
SEARCH_SECONDS = 5.0
LARGEST = 1 << 20


@dataclass(frozen=True)
class _Trial:
    """Whether batches of a size fit."""

    task: Task
    rows: int
    memory: str | float
    seconds: float

    def fits(self, size: int) -> bool:
        """Whether some plan for a batch of this size is within the budget."""
        task = self.task.with_batch(resized(self.task.batch, self.rows, size))
        graph = task.capture().graph
        budget = self._bytes(task)
        try:
            planner.optimize(
                graph,
                roofline.estimate(graph, RULER),
                memory=budget,
                time_budget=self.seconds,
            )
        except InfeasibleError:
            return False
        return True

    def _bytes(self, task: Task) -> int:
        asked = parse_memory(self.memory)
        if asked.share is not None:
            raise UsageError(
                stage="largest batch",
                what="a share of eager's peak grows with the batch",
                expected="bytes, a size or 'fit'",
                got=asked.text,
            )
        if not asked.fit:
            return asked.resolve(0, 0)
        held = resident_bytes(self.task.model, self.task.optimizer, None) if self.task.is_real else 0
        return free_bytes(task.device) + held


def largest_batch(
    task: Task, memory: str | float = "fit", seconds: float = SEARCH_SECONDS, progress: Progress = silent
) -> int:
    """Return the largest batch for which a plan within the budget is found; nothing is run.

    The batch is what the first dimension of the batch's tensors is; every tensor whose first dimension
    has that length grows with it. Hidden workspace is not known without running and does not count.

    Args:
        task: the step, with a batch of any size.
        memory: bytes, a size, or ``"fit"``.
        seconds: of searching for each size that is tried.
        progress: told where it is.

    Raises:
        UsageError: the batch has no tensor with a first dimension, or the budget is a share.
        InfeasibleError: not even a batch of one fits.
    """
    trial = _Trial(task, rows_of(task.batch), memory, seconds)
    if not trial.fits(1):
        raise InfeasibleError(
            stage="largest batch",
            what="not even a batch of one fits",
            expected=f"a plan within {memory}",
            hint="allow more memory, or use a smaller model",
        )
    return _bisect(trial.fits, trial.rows, progress)


def _bisect(fits: Callable[[int], bool], start: int, progress: Progress) -> int:
    """Return the largest size that fits, when 1 does: doubled from a start, then bisected."""
    good, bad = 1, max(2, start)
    while bad <= LARGEST and fits(bad):
        good, bad = bad, bad * 2
        progress("largest batch", 0.0, f"{good} fits")
    while bad - good > max(1, good // 64):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
        progress("largest batch", good / bad, f"{good} fits, {bad} does not")
    return good


def rows_of(batch: object) -> int:
    """Return the length of the first dimension of the first tensor of a batch that has one.

    Raises:
        UsageError: there is none.
    """
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return leaf.shape[0]
    raise UsageError(
        stage="largest batch",
        what="the batch has no tensor whose first dimension could grow",
        expected="a tensor of at least one dimension",
    )


def first_rows(batch: object, rows: int, part: int) -> object:
    """Return the first rows of a batch; tensors of another length stay whole.

    Example:
        >>> first_rows((torch.ones(4, 3), torch.ones(5)), 4, 2)[0].shape
        torch.Size([2, 3])
    """

    def cut(leaf: object) -> object:
        grows = isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == rows
        return leaf[:part].clone() if grows and isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(cut, batch)


def resized(batch: object, rows: int, size: int) -> object:
    """Return a batch of another size, without memory: tensors of the meta device where it grows.

    Example:
        >>> resized((torch.ones(4, 3), torch.ones(5)), 4, 9)[0].shape
        torch.Size([9, 3])
    """

    def other(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim() or leaf.shape[0] != rows:
            return leaf
        return torch.empty((size, *leaf.shape[1:]), dtype=leaf.dtype, device="meta")

    return pytree.tree_map(other, batch)
