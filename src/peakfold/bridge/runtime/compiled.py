"""One program, ready to be bound to a model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from peakfold.bridge.capture.binding import Binding
from peakfold.bridge.capture.captured import Captured, Missing
from peakfold.bridge.runtime.saved_guards import SavedGuards, saved_guards
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.plan.memory.layout import Layout


class Checks(Protocol):
    """What must hold for a program to be the user's."""

    def check(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, batch: object
    ) -> str | None:
        """Return what does not hold, or None."""


@dataclass(frozen=True)
class Compiled:
    """A captured program with its plan and its source.

    Attributes:
        graph: what is computed.
        binding: where its inputs come from.
        guards: when it holds.
        portable: the part of that which can be checked without the model's code.
        plan: how it is computed.
        source: the emitted file.
        missing: optimizer state to make before the first step.
        first_scalars: numbers by input id for a step that made ``missing`` state.
        inference: the outputs are what is returned; there is no loss and no update.
        report: what is known about it; any object.
        layout: where its allocations lie in one arena; None for torch's own allocator.
        told: the report as text, for the file that it is saved to; nothing where there is none.
    """

    graph: Graph
    binding: Binding
    guards: Checks
    portable: SavedGuards
    plan: Plan
    source: str
    missing: tuple[Missing, ...] = ()
    first_scalars: tuple[tuple[int, float], ...] = ()
    inference: bool = False
    report: object = None
    layout: Layout | None = None
    told: Callable[[], str] = str


def compiled(
    captured: Captured,
    plan: Plan,
    source: str,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batch: object,
    *,
    inference: bool = False,
    report: object = None,
    layout: Layout | None = None,
    told: Callable[[], str] = str,
) -> Compiled:
    """Return a captured program with a plan for it and the source that was emitted.

    Model, optimizer and batch are those of the capture.
    """
    guards = captured.guards
    truths = () if guards.optimizer is None else guards.optimizer.truths
    read = [entry for entry in guards.plain if entry.key not in guards.set_by_code]
    return Compiled(
        captured.graph,
        captured.binding,
        captured.guards,
        saved_guards(model, optimizer, batch, truths, read, guards.outside),
        plan,
        source,
        captured.missing,
        captured.first_scalars,
        inference,
        report,
        layout,
        told,
    )
