"""Plain data to JSON and back, exactly; never code.

Frozen dataclasses of a fixed list, tuples, torch's dtypes and devices, and trees. Tensors stand in a
list beside the JSON.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import cast

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture import binding
from peakfold.bridge.capture.captured import Missing
from peakfold.bridge.capture.outside import Outside
from peakfold.bridge.capture.truths import Place, StateNumber, Truth
from peakfold.bridge.runtime.saved_guards import BatchTensor, Group, SavedGuards
from peakfold.errors import CacheError
from peakfold.plan.memory.layout import Held, Layout
from peakfold.plan.memory.trace import Request, Trace, Ways

_CLASSES: Mapping[str, type] = {
    known.__name__: known
    for known in (
        binding.Parameter,
        binding.BufferOf,
        binding.GradientOf,
        binding.OptimizerState,
        binding.Hyperparameter,
        binding.BatchLeaf,
        binding.Constant,
        binding.ScalerState,
        binding.Verbatim,
        binding.Binding,
        Missing,
        SavedGuards,
        BatchTensor,
        Group,
        Outside,
        Held,
        Layout,
        Trace,
        Truth,
        Place,
        StateNumber,
        Request,
        Ways,
    )
}


def encode(thing: object, tensors: list[torch.Tensor]) -> object:
    """Return a thing as what ``json`` writes; its tensors are appended to ``tensors``.

    Raises:
        CacheError: the thing is not plain data.

    Example:
        >>> encode((1, torch.float32, binding.Parameter("w")), [])
        [1, {'dtype': 'float32'}, {'Parameter': ['w']}]
    """
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, tuple):
        return [encode(item, tensors) for item in thing]
    if isinstance(thing, torch.Tensor):
        tensors.append(thing.detach())
        return {"tensor": len(tensors) - 1}
    if isinstance(thing, torch.dtype):
        return {"dtype": str(thing).removeprefix("torch.")}
    if isinstance(thing, torch.device):
        return {"device": str(thing)}
    if isinstance(thing, pytree.TreeSpec):
        return {"tree": _tree_text(thing)}
    name = type(thing).__name__
    if is_dataclass(thing) and _CLASSES.get(name) is type(thing):
        return {name: [encode(getattr(thing, field.name), tensors) for field in fields(thing)]}
    raise _not_plain(repr(thing)[:80])


def _tree_text(tree: pytree.TreeSpec) -> str:
    try:
        return pytree.treespec_dumps(tree)
    except (NotImplementedError, TypeError) as error:
        raise _not_plain(str(error)) from error


def _not_plain(got: str) -> CacheError:
    return CacheError(
        stage="save",
        what="the step holds a Python object that cannot be saved",
        expected="outputs and batches of tensors, numbers, texts, tuples, lists and dicts",
        got=got,
        hint="return plain data from loss_fn beside the loss",
    )


def decode(text: object, tensors: list[torch.Tensor]) -> object:
    """Return the thing that `encode` wrote.

    Raises:
        ValueError: the text is not of `encode`.

    Example:
        >>> decode([1, {"dtype": "float32"}, {"Parameter": ["w"]}], [])
        (1, torch.float32, Parameter(name='w'))
    """
    if isinstance(text, list):
        return tuple(decode(item, tensors) for item in text)
    if not isinstance(text, dict):
        return text
    ((name, content),) = text.items()
    plain = _PLAIN.get(name)
    if plain is not None:
        return plain(content)
    if name == "tensor":
        return tensors[content]
    known = _CLASSES.get(name)
    if known is None:
        raise ValueError(f"unknown kind {name!r}")
    return known(*cast(tuple[object, ...], decode(content, tensors)))


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found


_PLAIN: Mapping[str, Callable[[str], object]] = {
    "dtype": _dtype,
    "device": torch.device,
    "tree": pytree.treespec_loads,
}
