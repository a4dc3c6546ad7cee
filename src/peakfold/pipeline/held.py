"""Which of the caller's tensors an arena holds beside what the step allocates."""

from collections import Counter
from collections.abc import Iterator, Mapping

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture import Captured
from peakfold.bridge.capture.batches import arguments
from peakfold.bridge.capture.binding import BatchLeaf, BufferOf, OptimizerState, Parameter, Source
from peakfold.bridge.runtime.held import is_alone
from peakfold.ir.graph import Value
from peakfold.ir.types import TensorType
from peakfold.pipeline.task import Task
from peakfold.plan.memory.layout import Held
from peakfold.plan.memory.lifetimes import KINDS


def held(task: Task, captured: Captured) -> tuple[Held, ...]:
    """Return the inputs of a program whose bytes may lie in its arena, by name.

    Those are parameters, buffers, optimizer state, also what the first step makes of it, and the batch. A
    tensor that shares its storage stays where it is: its bytes cannot move without those of others.
    """
    return tuple(_held(task, captured))


def _held(task: Task, captured: Captured) -> Iterator[Held]:
    tensors = dict(_tensors(task, captured.binding.sources))
    sharing = Counter(tensor.untyped_storage().data_ptr() for tensor in tensors.values())
    made = {missing.source for missing in captured.missing}
    for given, source in zip(captured.graph.inputs, captured.binding.sources, strict=True):
        tensor = tensors.get(source)
        if not isinstance(given.type, TensorType) or (tensor is None and source not in made):
            continue
        if tensor is not None and (not is_alone(tensor) or sharing[tensor.untyped_storage().data_ptr()] > 1):
            continue
        size = captured.graph.nbytes(Value(given.id))
        if size:
            yield Held(given.name, size, KINDS[given.kind])


def _tensors(task: Task, sources: tuple[Source, ...]) -> Iterator[tuple[Source, torch.Tensor]]:
    named = dict(task.model.named_parameters()), dict(task.model.named_buffers())
    leaves = pytree.tree_leaves(arguments(task.batch))
    for source in sources:
        found: object = None
        if isinstance(source, Parameter | BufferOf):
            found = named[isinstance(source, BufferOf)].get(source.name)
        elif isinstance(source, OptimizerState):
            found = _state(task, named[0], source)
        elif isinstance(source, BatchLeaf):
            found = leaves[source.index]
        if isinstance(found, torch.Tensor) and not _is_leaf_with_gradient(source, found):
            yield source, found


def _state(task: Task, parameters: Mapping[str, torch.Tensor], source: OptimizerState) -> object:
    if task.optimizer is None or source.parameter not in parameters:
        return None
    state: Mapping[str, object] = task.optimizer.state.get(parameters[source.parameter], {})
    return state.get(source.key)


def _is_leaf_with_gradient(source: Source, tensor: torch.Tensor) -> bool:
    return isinstance(source, BatchLeaf) and tensor.requires_grad
