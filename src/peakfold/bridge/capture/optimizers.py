"""Optimizers of the user's: copies on fake parameters, and what cannot be captured."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from peakfold.bridge.capture.fakes import FakeModule
from peakfold.errors import CaptureError

Group = dict[str, Any]
"""A parameter group."""


def run_step(optimizer: torch.optim.Optimizer) -> None:
    """Run an optimizer's own step, of the class of the user's.

    Raises:
        CaptureError: it cannot be followed; names the optimizer.
    """
    try:
        type(optimizer).step(optimizer)
    except CaptureError as error:
        if type(optimizer).__name__ in error.what:
            raise
        raise refused(optimizer, error.what) from error
    except Exception as error:
        raise refused(optimizer, f"{type(error).__name__}: {error}") from error


def check_keeps_numbers(
    optimizer: torch.optim.Optimizer, groups: list[Group], attributes: Mapping[str, object]
) -> None:
    """Refuse an optimizer whose step changed numbers of its own, which no program could write back.

    Args:
        optimizer: after its step.
        groups: its groups before.
        attributes: what it held before.
    """
    for index, (group, before) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        for key in dict.fromkeys((*before, *group)):
            if group.get(key) is not before.get(key):
                raise refused(optimizer, f"its step changes {key!r} of group {index}")
    for key, value in optimizer.__dict__.items():
        if isinstance(value, int | float | str) and attributes.get(key) != value:
            raise refused(optimizer, f"its step changes its attribute {key!r}")


def refused(optimizer: torch.optim.Optimizer, got: str) -> CaptureError:
    """Return the error for an optimizer that cannot be captured."""
    return CaptureError(
        stage="capture",
        what=f"the optimizer {type(optimizer).__name__} cannot be captured",
        expected="an optimizer whose step() needs gradients only, and whose state is tensors",
        got=got,
        hint="pass optimizer=None: the step leaves gradients, and the optimizer runs by itself",
    )


def updated_names(optimizer: torch.optim.Optimizer, module: FakeModule) -> frozenset[str]:
    """Return the names of the parameters that an optimizer updates."""
    return frozenset(names_of(optimizer, module).values())


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the parameters of every group."""
    for group in optimizer.param_groups:
        yield from group["params"]


def names_of(optimizer: torch.optim.Optimizer, module: FakeModule) -> dict[int, str]:
    """Return the name of each parameter of an optimizer, by id.

    Raises:
        CaptureError: one is not the model's.
    """
    names = {id(real): name for name, real, _ in module.parameters}
    for real in parameters_of(optimizer):
        if id(real) not in names:
            raise CaptureError(
                stage="capture",
                what="the optimizer updates a tensor that is not a parameter of the model",
                expected="parameters of the model",
                got=f"a tensor of shape {tuple(real.shape)}",
                hint="make the optimizer from model.parameters() of the model that is passed",
            )
    return {id(real): names[id(real)] for real in parameters_of(optimizer)}


def copy_of(
    optimizer: torch.optim.Optimizer, groups: list[Group], state: Mapping[torch.Tensor, Group]
) -> torch.optim.Optimizer:
    """Return an optimizer of the same class with other groups and state."""
    copy = object.__new__(type(optimizer))
    copy.__dict__.update(optimizer.__dict__)
    copy.__dict__.pop("step", None)
    copy.param_groups = groups
    copy.state = defaultdict(dict, state)
    return copy


def without_hooks(copy: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the copy for a step on the side, which is no step of the user's."""
    copy._optimizer_step_pre_hooks = OrderedDict()
    copy._optimizer_step_post_hooks = OrderedDict()
    return copy
