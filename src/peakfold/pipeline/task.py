"""What is optimized: the user's own objects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture import Captured, capture_inference, capture_step
from peakfold.bridge.runtime.bind import Subject
from peakfold.bridge.runtime.copies import copies
from peakfold.bridge.runtime.measure import resident_bytes
from peakfold.bridge.runtime.once import with_graph
from peakfold.errors import UsageError
from peakfold.graph.rewrite.passes.once import named
from peakfold.ir.graph import Graph
from peakfold.workloads import Target


@dataclass(frozen=True)
class Task:
    """A training step (or inference, where ``loss_fn`` is None) on the user's own objects.

    Attributes:
        model: the module.
        loss_fn: ``loss_fn(model, *batch)`` returns the loss or (loss, outputs); None for inference.
        optimizer: None where gradients are left in ``.grad``.
        batch: the arguments of one call.
        scaler: a gradient scaler around loss and update.
        clip_grad_norm: total norm that gradients are clipped to before the update.
        rewriter: what is done to the captured graph, which computes the same after it; None for nothing.
        rounds: whether that rounds otherwise than the program as captured.
        once: names of nodes of the rewritten graph that read no input and are computed when it is captured.
        keyed: random numbers are made from a key of each step, not drawn from torch's stream.
        widened: what the code casts to a narrower floating type is cast to float64.
    """

    model: torch.nn.Module
    loss_fn: Callable[..., Any] | None
    optimizer: torch.optim.Optimizer | None
    batch: object
    scaler: torch.amp.GradScaler | None = None
    clip_grad_norm: float | None = None
    rewriter: Callable[[Graph], Graph] | None = None
    rounds: bool = False
    once: tuple[str, ...] = ()
    keyed: bool = False
    widened: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no model, loss function or optimizer.

        Raises:
            UsageError: one is something else.
        """
        _require(isinstance(self.model, torch.nn.Module), "model", "a torch.nn.Module", self.model)
        _require(
            self.loss_fn is None or callable(self.loss_fn),
            "loss_fn",
            "a function of (model, *batch) that returns the loss",
            self.loss_fn,
        )
        _require(
            self.optimizer is None or isinstance(self.optimizer, torch.optim.Optimizer),
            "optimizer",
            "a torch.optim.Optimizer, or None for gradients alone",
            self.optimizer,
        )

    @staticmethod
    def of(target: Target, keyed: bool = False) -> "Task":
        """Return the task of a target of the command line."""
        return Task(target.model, target.loss_fn, target.optimizer, target.batch, keyed=keyed)

    @property
    def subject(self) -> Subject:
        """What a Step runs on."""
        return Subject(self.model, self.optimizer, self.scaler)

    @property
    def is_real(self) -> bool:
        """Whether every tensor has numbers: none is on the meta device or fake."""
        tensors = [*self.model.parameters(), *self.model.buffers(), *pytree.tree_leaves(self.batch)]
        held = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
        return all(type(t) in (torch.Tensor, torch.nn.Parameter) and t.device.type != "meta" for t in held)

    @property
    def device(self) -> str:
        """Device of the first parameter; the CPU where there is none."""
        first = next(self.model.parameters(), None)
        return "cpu" if first is None or first.device.type == "meta" else str(first.device)

    def capture(self) -> Captured:
        """Return the program that this task is, rewritten where the task says so."""
        captured = self._captured()
        if self.rewriter is not None:
            captured = replace(captured, graph=self.rewriter(captured.graph))
        return with_graph(captured, named(captured.graph, self.once)) if self.once else captured

    def _captured(self) -> Captured:
        if self.loss_fn is None:
            return capture_inference(self.model, self.batch, keyed=self.keyed, widened=self.widened)
        return capture_step(
            self.model,
            self.loss_fn,
            self.optimizer,
            self.batch,
            scaler=self.scaler,
            clip_grad_norm=self.clip_grad_norm,
            keyed=self.keyed,
            widened=self.widened,
        )

    def resident(self, others: Sequence[torch.Tensor] = ()) -> int:
        """Return the bytes that live between steps, those of other tensors included."""
        entries = [] if self.scaler is None else list(vars(self.scaler).values())
        kept = [entry for entry in entries if isinstance(entry, torch.Tensor)]
        return resident_bytes(self.model, self.optimizer, self.batch, (*kept, *others))

    def with_batch(self, batch: object) -> "Task":
        """Return the task with another batch."""
        return replace(self, batch=batch)

    def clone(self) -> "Task":
        """Return the task on copies of all of it."""
        parts = (self.model, self.loss_fn, self.optimizer, self.scaler, self.batch)
        model, loss_fn, optimizer, scaler, batch = copies(parts)
        return replace(self, model=model, loss_fn=loss_fn, optimizer=optimizer, batch=batch, scaler=scaler)  # type: ignore[arg-type]


def _require(holds: bool, name: str, expected: str, got: object) -> None:
    if not holds:
        raise UsageError(
            stage="options",
            what=f"the {name} is something else",
            expected=expected,
            got=f"{type(got).__name__} {got!r}"[:80],
        )
