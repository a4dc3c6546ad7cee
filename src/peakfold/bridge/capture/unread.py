"""Ways out of a tensor that pass no operator: to NumPy, to other libraries, to its address in memory."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from peakfold.bridge.capture.places import data_dependent, is_model_code
from peakfold.bridge.capture.values import Values

_EVERYWHERE = ("numpy", "__dlpack__", "__format__")
_OF_MODELS = ("data_ptr", "untyped_storage")
"""Those that count where the model's code calls them: torch asks for them itself, for no numbers."""


@contextmanager
def unread(values: Values) -> Iterator[None]:
    """Refuse ways out of fake tensors inside, but for those whose numbers are known.

    Args:
        values: numbers that are known.

    Raises:
        CaptureError: in what runs inside; it names the line of the model's code.
    """
    with ExitStack() as stack:
        for name in _EVERYWHERE + _OF_MODELS:
            made = _guarded(getattr(torch.Tensor, name), values, name in _OF_MODELS)
            stack.enter_context(patch.object(torch.Tensor, name, made))
        yield


def _guarded(plain: Callable[..., object], values: Values, of_models: bool) -> Callable[..., object]:
    def way_out(tensor: Any, *args: Any, **kwargs: Any) -> object:
        is_text = args == ("",)  # what format(tensor) gives, which holds no number of a fake tensor
        if not isinstance(tensor, FakeTensor) or is_text or (of_models and not _is_asked_by_model()):
            return plain(tensor, *args, **kwargs)
        known = None if of_models else values.of(tensor)
        if known is None:
            raise data_dependent("a value of a tensor is read to decide what Python does")
        with _disable_current_modes():
            return plain(known.detach().clone(), *args, **kwargs)

    return way_out


def _is_asked_by_model() -> bool:
    return is_model_code(sys._getframe(2).f_code)
