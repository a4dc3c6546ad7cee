"""Gradients as autograd leaves them in ``.grad``."""

from collections.abc import Sequence

import torch

from peakfold.bridge.capture.binding import GradientOf
from peakfold.bridge.capture.fakes import fake_of
from peakfold.bridge.capture.trace import Trace


def accumulate(
    trace: Trace,
    wanted: Sequence[tuple[str, torch.nn.Parameter, torch.Tensor]],
    found: Sequence[torch.Tensor | None],
) -> dict[str, torch.Tensor]:
    """Return the gradient of each parameter that has one, added to what is in ``.grad``.

    Args:
        trace: of the capture.
        wanted: (name, real, fake) of each parameter.
        found: autograd's gradient of each, None where there is none.
    """
    made: dict[str, torch.Tensor] = {}
    cells: set[int] = set()
    with torch.no_grad():
        for (name, real, fake), gradient in zip(wanted, found, strict=True):
            old = _present(trace, name, real)
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


def _present(trace: Trace, name: str, real: torch.Tensor) -> torch.Tensor | None:
    if real.grad is None:
        return None
    with trace.tape.fake:
        fake = fake_of(real.grad)
    trace.add(fake, f"{name}.grad", "gradient", GradientOf(name))
    return fake


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
