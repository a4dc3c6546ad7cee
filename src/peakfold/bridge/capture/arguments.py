"""Arguments and types of torch calls in the language of the Graph."""

from collections.abc import Mapping
from typing import Protocol

import torch

from peakfold.bridge.capture.host import HostBook, HostNumber, unrecorded
from peakfold.bridge.capture.places import model_line
from peakfold.errors import CaptureError
from peakfold.ir.graph import Arg, Symbol, Value
from peakfold.ir.types import DTYPE_BYTES, TensorType


class Reader(Protocol):
    """What tensors and host numbers stand for."""

    def value(self, tensor: torch.Tensor) -> Value:
        """Return what a tensor stands for."""

    def host_value(self, number: HostNumber) -> Value:
        """Return what a host number stands for."""

    def number(self, number: float) -> HostNumber | None:
        """Return the recorded host number with these bits."""


def check_dense(tensor: torch.Tensor | None) -> None:
    """Refuse a tensor that is not dense."""
    if tensor is not None and tensor.layout is not torch.strided:
        raise _not_dense(tensor)


def _not_dense(tensor: torch.Tensor) -> CaptureError:
    return CaptureError(
        stage="capture",
        what=f"a tensor of layout {tensor.layout} and type {tensor.dtype} is not supported",
        expected=f"dense tensors of {', '.join(DTYPE_BYTES)}",
        hint="for nn.Embedding, leave sparse=False",
    )


def tensor_type(tensor: torch.Tensor) -> TensorType:
    """Return the type of a dense tensor."""
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or name not in DTYPE_BYTES:
        raise _not_dense(tensor)
    return TensorType(tuple(tensor.shape), name, str(tensor.device), tensor.stride())


def argument(arg: object, reader: Reader) -> Arg:
    """Return an argument of a torch call as one of a node."""
    if isinstance(arg, torch.Tensor):
        return reader.value(arg)
    if isinstance(arg, list | tuple):
        return tuple(argument(item, reader) for item in arg)
    if isinstance(arg, float):
        number = reader.number(arg)
        return arg if number is None else reader.host_value(number)
    if arg is None or isinstance(arg, Value | bool | int | str):
        return arg
    return _symbol(arg)


def _symbol(arg: object) -> Symbol:
    if isinstance(arg, torch.device):
        return Symbol("device", str(arg))
    for kind, torch_type in _SYMBOLS.items():
        if isinstance(arg, torch_type):
            return Symbol(kind, str(arg).removeprefix("torch."))  # type: ignore[arg-type]
    raise CaptureError(
        stage="capture",
        what=f"an operator is given a {type(arg).__name__}, which a graph cannot hold",
        where=model_line(),
        expected="tensors, numbers, strings, dtypes, devices, layouts, memory formats",
        hint="use the default generator"
        if isinstance(arg, torch.Generator)
        else "write it as a tensor or with real numbers",
    )


_SYMBOLS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def ordered(
    func: torch._ops.OpOverload, kwargs: Mapping[str, object], reader: Reader
) -> tuple[tuple[str, Arg], ...]:
    """Return keyword arguments in the order of the operator's schema."""
    names = [a.name for a in func._schema.arguments if a.name in kwargs]
    return tuple((name, argument(kwargs[name], reader)) for name in names)


def recognised(number: float, book: HostBook, strict: bool) -> HostNumber | None:
    """Return the recorded number with these bits, None for a constant.

    Args:
        number: as it reached an operator.
        book: the numbers of the capture.
        strict: refuse a constant that looks computed, which could be a host number in disguise.
    """
    found = book.find(number)
    if found is None and strict and unrecorded(number):
        raise CaptureError(
            stage="capture",
            what=f"the optimizer computes a number in a way that cannot be followed: {number!r}",
            expected="+, -, *, /, ** on the numbers of param_groups",
            hint="pass optimizer=None: the step leaves gradients, and the optimizer runs by itself",
        )
    return found
