"""Host numbers that Python puts into tensors, as operators that take the number."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from peakfold.bridge.capture.host import HostNumber


class NumbersIntoTensors(TorchFunctionMode):
    """Inside, a tensor that is made of a recorded number is filled with it by an operator.

    ``torch.tensor`` and ``tensor[mask] = number`` make a constant of the number, before any operator runs.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and isinstance(args[0], HostNumber):
            return _filled(*args, **options)
        if func is torch.Tensor.__setitem__ and _is_masked_number(*args):
            tensor, mask, number = args
            tensor.masked_fill_(mask, number)
            return None
        return func(*args, **options)


def _filled(
    number: HostNumber, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> torch.Tensor:
    return torch.full((), number, dtype=dtype or torch.get_default_dtype(), device=device)


def _is_masked_number(tensor: torch.Tensor, mask: object, number: object) -> bool:
    is_mask = isinstance(mask, torch.Tensor) and mask.dtype is torch.bool and mask.shape == tensor.shape
    return is_mask and isinstance(number, float | int)
