"""Tensors that a program's Python keeps for later, outside of what it returns: refused, never kept fake."""

import types
from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensor

from peakfold.bridge.capture.reads import is_torch
from peakfold.bridge.capture.values import Values
from peakfold.errors import CaptureError

_TABLES = frozenset(("_parameters", "_buffers", "_modules"))


def check_modules_keep_nothing(
    root: torch.nn.Module, before: list[dict[str, object]], values: Values, own: Collection[int]
) -> None:
    """Refuse tensors of the program in Python attributes of modules.

    Weights that torch's own hooks make anew before each forward pass are no such thing.

    Args:
        root: the model, after it ran.
        before: attributes of each module before.
        values: numbers that are known: what is made of shapes alone may be kept.
        own: ids of what stands for the model's parameters and buffers.
    """
    for (path, module), old in zip(root.named_modules(), before, strict=True):
        if any(is_torch(type(hook)) for hook in module._forward_pre_hooks.values()):
            continue
        for key, now in module.__dict__.items():
            if key not in _TABLES and _holds_fake(now, values, own):
                raise _kept(f"the Python attribute {path + '.' if path else ''}{key}", old.get(key))


def check_functions_keep_nothing(
    model: torch.nn.Module, function: Callable[..., object], values: Values
) -> None:
    """Refuse tensors of the program in containers that hooks and the user's function append to."""
    for found in (function, *_hooks(model)):
        for name, held in _containers(found):
            if _holds_fake(held, values):
                raise _kept(f"{name}, which {getattr(found, '__qualname__', found)} writes to", None)


def _holds_fake(thing: object, values: Values, own: Collection[int] = ()) -> bool:
    held = list(thing.values()) if isinstance(thing, dict) else thing
    leaves = held if isinstance(held, list | tuple | set) else (held,)
    fakes = [leaf for leaf in leaves if isinstance(leaf, FakeTensor) and id(leaf) not in own]
    return any(values.of(leaf) is None for leaf in fakes)


def _hooks(model: torch.nn.Module) -> Iterator[Callable[..., object]]:
    for module in model.modules():
        yield from module._forward_hooks.values()
        yield from module._forward_pre_hooks.values()


def _containers(function: object) -> Iterator[tuple[str, object]]:
    """Yield the containers that a function closes over, names as globals, or has in its object."""
    if isinstance(function, types.MethodType):
        if not isinstance(function.__self__, torch.nn.Module):
            yield from getattr(function.__self__, "__dict__", {}).items()
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        if not isinstance(function, torch.nn.Module):
            yield from getattr(function, "__dict__", {}).items()
        return
    table: Mapping[str, object] = function.__globals__
    yield from ((name, table[name]) for name in function.__code__.co_names if name in table)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    yield from ((f"a default of {function.__qualname__}", value) for value in function.__defaults__ or ())


def _kept(where: str, before: object) -> CaptureError:
    cache = "" if before is not None else "; of a cache that the first run fills: run the model once before"
    return CaptureError(
        stage="capture",
        what=f"the forward pass keeps a tensor in {where}",
        expected="tensors that are returned",
        got="a tensor that later steps would not write again",
        hint=f"return it from loss_fn beside the loss: (loss, outputs){cache}",
    )
