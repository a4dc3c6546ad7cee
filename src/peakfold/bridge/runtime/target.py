"""What is trained, and copies of it to be run beside it: in its own precision and in float64."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.runtime.copies import copies
from peakfold.errors import UsageError


@dataclass(frozen=True)
class Target:
    """What is trained.

    Attributes:
        model: the module.
        loss_fn: ``loss_fn(model, *batch)`` gives the loss, or ``(loss, outputs)``; None for inference.
        optimizer: None where gradients stay in ``.grad``.
        batch: a dict, a tuple, or one tensor.
        scaler: a gradient scaler, or None.
        clip_grad_norm: total norm that gradients are clipped to before the update, or None.
        keyed: random numbers are made from a key of each step; eager draws the same for the comparison.
    """

    model: torch.nn.Module
    loss_fn: Callable[..., object] | None
    optimizer: torch.optim.Optimizer | None
    batch: object
    scaler: torch.amp.GradScaler | None = None
    clip_grad_norm: float | None = None
    keyed: bool = False


def copied(target: Target) -> Target:
    """Return a deep copy whose optimizer updates the copy's parameters.

    Raises:
        UsageError: the model cannot be copied.
    """
    parts = (target.model, target.loss_fn, target.optimizer, target.batch, target.scaler)
    try:
        return Target(*copies(parts), target.clip_grad_norm, target.keyed)  # type: ignore[arg-type, call-arg]
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise UsageError(
            stage="verify",
            what="the model or the batch cannot be copied, and copies are what is measured and verified",
            expected="what copy.deepcopy accepts",
            got=str(error).splitlines()[0],
            hint="detach tensors that the model and the batch hold, or give the class named above a "
            "__deepcopy__; only verify=False without a budget copies nothing",
        ) from error


def doubled(target: Target) -> Target:
    """Return the target with parameters, buffers, optimizer state and batch in float64, in place.

    The step count of an optimizer stays as it is.
    """
    target.model.double()
    state = target.optimizer.state if target.optimizer is not None else {}
    for entries in state.values():
        for key, entry in entries.items():
            if key != "step":
                entries[key] = _double(entry)
    return replace(target, batch=pytree.tree_map(_double, target.batch))


def _double(leaf: object) -> object:
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
