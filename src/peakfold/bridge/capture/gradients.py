"""Gradients as autograd leaves them in ``.grad``."""

from collections.abc import Collection, Sequence

import torch

from peakfold.bridge.capture.binding import BatchLeaf, GradientOf
from peakfold.bridge.capture.fakes import fake_of
from peakfold.bridge.capture.places import users_errors
from peakfold.bridge.capture.trace import Trace
from peakfold.errors import CaptureError
from peakfold.ir.graph import Output

Row = tuple[str, torch.nn.Parameter, torch.Tensor]


Found = Sequence[torch.Tensor | None]
"""Gradients as autograd gives them: of the parameters that need one, then of such tensors of the batch."""


def differentiated(trace: Trace, loss: torch.Tensor) -> Found:
    """Return the gradients of a loss.

    Args:
        trace: of the capture.
        loss: what is differentiated.
    """
    fakes = [*(fake for _, _, fake in _wanted(trace)), *_leaves_with_gradient(trace).values()]
    with users_errors("the backward pass"):
        return torch.autograd.grad(loss, fakes, allow_unused=True)


def accumulated(
    trace: Trace, found: Found, updated: Collection[str] | None
) -> tuple[dict[str, torch.Tensor], dict[int, torch.Tensor]]:
    """Return the gradients of parameters by name, and those of tensors of the batch by leaf.

    A parameter's is added to what is in ``.grad``.

    Args:
        trace: of the capture.
        found: the gradients of its loss.
        updated: names of the parameters that the optimizer updates; None without one.
    """
    wanted, leaves = _wanted(trace), _leaves_with_gradient(trace)
    cells: set[int] = set()
    made = _accumulated(trace, wanted, found[: len(wanted)], updated, cells)
    with torch.no_grad():
        pairs = zip(leaves.items(), found[len(wanted) :], strict=True)
        return made, {index: _own(g, leaf, cells) for (index, leaf), g in pairs if g is not None}


def _wanted(trace: Trace) -> list[Row]:
    return [row for row in trace.module.parameters if row[2].requires_grad]


def _leaves_with_gradient(trace: Trace) -> dict[int, torch.Tensor]:
    """Return the tensors of the batch that need a gradient, by leaf."""
    indices = [source.index for source in trace.inputs if isinstance(source, BatchLeaf)]
    for index in indices:
        given = trace.batch.leaves[index]
        if isinstance(given, torch.Tensor) and given.requires_grad and not given.is_leaf:
            raise CaptureError(
                stage="capture",
                what=f"{trace.batch.names[index]} was computed from tensors that need a gradient",
                expected="a batch whose gradients end in it",
                got=f"a tensor made by {given.grad_fn}",
                hint="detach it: .detach(), or compute it inside loss_fn",
            )
    found = ((index, trace.leaves[index]) for index in indices)
    return {i: leaf for i, leaf in found if isinstance(leaf, torch.Tensor) and leaf.requires_grad}


def _accumulated(
    trace: Trace,
    wanted: Sequence[Row],
    found: Sequence[torch.Tensor | None],
    updated: Collection[str] | None,
    cells: set[int],
) -> dict[str, torch.Tensor]:
    made: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for (name, real, fake), gradient in zip(wanted, found, strict=True):
            stays = updated is not None and name not in updated and gradient is not None
            old = _present(trace, name, real, fake, stays)
            if gradient is None and old is None:
                continue
            if gradient is None:
                assert old is not None
                made[name] = old
            elif old is not None:
                made[name] = old.add_(gradient)
            else:
                made[name] = _own(gradient, fake, cells)
    return made


def _present(
    trace: Trace, name: str, real: torch.Tensor, fake: torch.Tensor, stays: bool
) -> torch.Tensor | None:
    """Return the gradient that stands in ``.grad`` before the step.

    One that no optimizer clears stands there before every step but the first, which is as the others:
    it starts from -0.0.
    """
    if real.grad is None and not stays:
        return None
    with trace.tape.fake:
        made = fake_of(real.grad) if real.grad is not None else torch.empty_like(fake, requires_grad=False)
    trace.add(made, f"{name}.grad", "gradient", GradientOf(name))
    return made


def _own(gradient: torch.Tensor, parameter: torch.Tensor, taken: set[int]) -> torch.Tensor:
    """Return a gradient of the parameter's strides whose storage is no other gradient's.

    torch's AccumulateGrad takes what arrives where it may, and copies where it may not.
    """
    key = gradient.untyped_storage()._cdata
    if gradient.stride() == parameter.stride() and key not in taken:
        taken.add(key)
        return gradient
    made = gradient.new_empty_strided(parameter.shape, parameter.stride())
    made.copy_(gradient)
    taken.add(made.untyped_storage()._cdata)
    return made


def batch_outputs(trace: Trace, gradients: dict[int, torch.Tensor]) -> dict[str | int, Output]:
    """Return the outputs that become ``.grad`` of tensors of the batch, by leaf."""
    names = trace.batch.names
    return {i: Output(f"{names[i]}.grad", trace.tape.value(g)) for i, g in gradients.items()}
