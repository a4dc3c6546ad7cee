"""Eager before it is run: its memory over the step, and its seconds."""

from peakfold.bridge.capture.eager_memory import EagerMemory, eager_memory
from peakfold.bridge.capture.hidden import measured, onednn
from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.pipeline.task import Task
from peakfold.report.model import Block, Timeline


def timeline_before(task: Task, graph: Graph | None = None, costs: Costs | None = None) -> Timeline:
    """Return the predicted memory of eager's step or inference, from its own code on fake tensors.

    Hidden workspace comes from the costs of the captured graph; without them, from a model of what
    convolutions reorder.

    Args:
        task: a training step, or inference.
        graph: its captured program.
        costs: measured costs of that.
    """
    hidden = onednn if graph is None or costs is None else measured(graph, costs.workspace)
    found = eager_memory(task.model, task.loss_fn, task.optimizer, task.batch, workspace=hidden)
    return _timeline(found)


def _timeline(found: EagerMemory) -> Timeline:
    blocks = (
        Block(held.name, held.kind, held.nbytes, held.start, held.end, held.module, held.source)
        for held in found.held
    )
    return Timeline(found.steps, (0.0,) * len(found.steps), tuple(blocks))
