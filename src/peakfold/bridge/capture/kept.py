"""Tensors that a program's Python keeps for later, outside of what it returns: refused, never kept fake."""

import types
from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensor

from peakfold.bridge.capture.owners import is_torch
from peakfold.bridge.capture.values import Values
from peakfold.bridge.capture.watch import line_that_names
from peakfold.errors import CaptureError

_TABLES = frozenset(("_parameters", "_buffers", "_modules"))


def made_by_hooks(root: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the modules whose weights hooks of torch's own make anew before each forward pass."""
    for module in root.modules():
        if any(is_torch(type(hook)) for hook in module._forward_pre_hooks.values()):
            yield module


def check_keeps_nothing(
    root: torch.nn.Module,
    function: Callable[..., object],
    values: Values,
    may: Collection[int],
    ran: Collection[types.CodeType],
) -> None:
    """Refuse tensors of the program in attributes of modules, and in what hooks and a function append to.

    Args:
        root: the model, after it ran.
        function: that was run on it.
        values: numbers that are known: what is made of shapes alone may be kept.
        may: ids of what stands for the model's parameters and buffers, and of what is known to be a cache.
        ran: the model's code that ran.
    """
    exempt = set(map(id, made_by_hooks(root)))
    for path, module in root.named_modules():
        for key, now in module.__dict__.items() if id(module) not in exempt else ():
            if key not in _TABLES and _holds_fake(now, values, may):
                words = f"the Python attribute {path + '.' if path else ''}{key}"
                raise kept_error(words, line_that_names(key, ran))
    for found in (function, *_hooks(root)):
        for name, held in _containers(found):
            if _holds_fake(held, values, may):
                words = f"{name}, which {getattr(found, '__qualname__', found)} writes to"
                raise kept_error(words, line_that_names(name, ran))


def _holds_fake(thing: object, values: Values, may: Collection[int]) -> bool:
    held = list(thing.values()) if isinstance(thing, dict) else thing
    leaves = held if isinstance(held, list | tuple | set) else (held,)
    fakes = [leaf for leaf in leaves if isinstance(leaf, FakeTensor) and id(leaf) not in may]
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


def kept_error(where: str, line: str) -> CaptureError:
    """Return the refusal of a tensor that a program keeps.

    Args:
        where: what to call the place.
        line: of the model's code that keeps it.
    """
    return CaptureError(
        stage="capture",
        what=f"the forward pass keeps a tensor in {where}",
        where=line,
        expected="tensors that are returned",
        got="a tensor that later steps would not write again",
        hint="return it from loss_fn beside the loss: (loss, outputs)",
    )
