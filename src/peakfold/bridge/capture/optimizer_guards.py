"""When a captured program is that of the user's optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from peakfold.bridge.capture.entries import MISSING
from peakfold.bridge.capture.truths import Truth, broken_truth

OF_SCHEDULERS = "initial_lr"
"""What schedulers add to a group; no optimizer reads it."""


@dataclass(frozen=True, slots=True)
class GroupGuard:
    """A parameter group.

    Attributes:
        parameters: the objects, in order.
        flags: what of each entry is part of the program: all but numbers that may change.
        tensors: names of the entries that are tensors.
    """

    parameters: tuple[torch.Tensor, ...]
    flags: tuple[tuple[str, object], ...]
    tensors: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class OptimizerGuard:
    """The optimizer's structure."""

    kind: type
    groups: tuple[GroupGuard, ...]
    truths: tuple[Truth, ...]
    parameters: Mapping[str, torch.Tensor]
    hooks: tuple[int, ...]
    states: tuple[torch.Tensor, ...]

    def broken(self, optimizer: torch.optim.Optimizer | None) -> str | None:
        """Return what differs, or None."""
        if optimizer is None or type(optimizer) is not self.kind:
            return f"the optimizer is a {type(optimizer).__name__}, captured as {self.kind.__name__}"
        if len(optimizer.param_groups) != len(self.groups):
            return f"the optimizer has {len(optimizer.param_groups)} groups, captured as {len(self.groups)}"
        for index, (group, known) in enumerate(zip(optimizer.param_groups, self.groups, strict=True)):
            reason = _group_broken(index, group, known)
            if reason is not None:
                return reason
        if step_hooks(optimizer) != self.hooks:
            return "a step hook of the optimizer was added or removed"
        if any(parameter not in optimizer.state for parameter in self.states):
            return "the optimizer's state was cleared"
        return next(broken_truth(self.truths, optimizer, self.parameters), None)


def _group_broken(index: int, group: Mapping[str, object], known: GroupGuard) -> str | None:
    parameters = group["params"]
    assert isinstance(parameters, list)
    if len(parameters) != len(known.parameters):
        return f"group {index} of the optimizer has {len(parameters)} parameters"
    for now, then in zip(parameters, known.parameters, strict=True):
        if now is not then:
            return f"a parameter in group {index} of the optimizer was replaced"
    if _tensor_keys(group) != known.tensors:
        return f"a tensor became a number, or a number a tensor, in group {index} of the optimizer"
    for key, value in known.flags:
        if constant_part(key, group.get(key, MISSING)) != value:
            return f"{key} of group {index} of the optimizer is {group.get(key)!r}, captured as {value!r}"
    return None


def _tensor_keys(group: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the entries that are tensors, ``betas.0`` for the first of a tuple."""
    items = ((f"{k}.{i}", item) for k, v in group.items() if isinstance(v, tuple) for i, item in enumerate(v))
    held = (key for key, entry in (*group.items(), *items) if isinstance(entry, torch.Tensor))
    return tuple(key for key in held if key != OF_SCHEDULERS)


def step_hooks(optimizer: torch.optim.Optimizer) -> tuple[int, ...]:
    """Return the keys of an optimizer's step hooks."""
    return (*optimizer._optimizer_step_pre_hooks, -1, *optimizer._optimizer_step_post_hooks)


def optimizer_guard(
    optimizer: torch.optim.Optimizer,
    truths: Sequence[Truth],
    states: Sequence[torch.Tensor],
    parameters: Mapping[str, torch.Tensor],
) -> OptimizerGuard:
    """Return the guards of an optimizer.

    Args:
        optimizer: the user's.
        truths: tests on its numbers.
        states: parameters whose state must exist.
        parameters: of the model, by name.
    """
    groups = tuple(
        GroupGuard(
            tuple(group["params"]),
            tuple((k, part) for k, v in group.items() if (part := constant_part(k, v)) is not CHANGES),
            _tensor_keys(group),
        )
        for group in optimizer.param_groups
    )
    hooks = step_hooks(optimizer)
    return OptimizerGuard(type(optimizer), groups, tuple(truths), parameters, hooks, tuple(states))


CHANGES = "changes"
"""Stands for what may change: it is an input of the program, or no part of it."""


def constant_part(key: str, value: object) -> object:
    """Return what of a group's entry the program holds as a constant, `CHANGES` for the rest.

    Example:
        >>> constant_part("foreach", None), constant_part("lr", 1), constant_part("step_sizes", (1e-6, 50))
        (None, 'changes', ('changes', 50))
    """
    if isinstance(value, tuple):
        return tuple(constant_part(key, item) for item in value)
    if isinstance(value, bool | str | type(None)):
        return value
    is_constant = isinstance(value, int) and key not in ("lr", OF_SCHEDULERS)
    return value if is_constant or value is MISSING else CHANGES
