"""What is inside of containers, of functions that wrap others, and of objects."""

import functools
import operator
import types
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterator
from functools import cache, partial

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.entries import MOST_COPIED
from peakfold.bridge.capture.owners import is_torch

WRAPPERS = (
    staticmethod, classmethod, property, functools.cached_property, weakref.ref, functools._lru_cache_wrapper
)  # fmt: skip
GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
WITH_PARTS = (dict, list, tuple, deque, partial, types.MethodType, types.MappingProxyType)


def wrapped(value: object) -> object:
    """Return the function inside of what is called or read like one."""
    if isinstance(value, weakref.ref):
        return value()
    for name in ("__wrapped__", "fget", "func"):
        found = getattr(value, name, None)
        if found is not None:
            return found
    return None


def hooks_of(module: torch.nn.Module) -> Iterator[object]:
    """Yield the hooks of a module and of its parameters."""
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        yield from getattr(module, name).values()
    for parameter in module._parameters.values():
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            yield from (getattr(parameter, name, None) or {}).values()


def names_in(value: object) -> frozenset[str]:
    """Return the attributes in which a container of Python's own library keeps its items."""
    return frozenset(("data", "maps") if isinstance(value, UserDict | UserList | ChainMap) else ())


@cache
def slots_of(kind: type) -> frozenset[str]:
    """Return the attributes of a class's objects that are in no ``__dict__``."""
    members = (vars(base).items() for base in kind.__mro__)
    return frozenset(
        name for rows in members for name, held in rows if isinstance(held, types.MemberDescriptorType)
    )


@cache
def properties_of(kind: type) -> frozenset[str]:
    """Return the attributes that modules of a class of their own compute."""
    if kind is types.ModuleType:
        return frozenset()
    return frozenset(name for base in kind.__mro__[:-2] for name in vars(base) if not name.startswith("__"))


def parts_of(value: object, most: int = MOST_COPIED) -> list[object]:
    """Return what a container or a bound function holds; nothing of a large one."""
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    assert isinstance(value, dict | list | tuple | deque | types.MappingProxyType)
    if len(value) > most:
        return []
    return list(value if isinstance(value, list | tuple | deque) else value.values())


def parts_of_getter(getter: object) -> list[object]:
    """Return the names, keys and arguments that a ready-made getter of ``operator`` was made with.

    Example:
        >>> parts_of_getter(operator.methodcaller("scaled", 2.0, by=3.0))
        ['scaled', 2.0, 3.0]
    """
    reduced = getter.__reduce__()
    assert isinstance(reduced, tuple)
    made, given = reduced
    return [*made.args, *given, *made.keywords.values()] if isinstance(made, partial) else [*given]


def names_of_getter(getter: object) -> frozenset[str]:
    """Return the attributes that a ready-made getter of ``operator`` reads.

    Example:
        >>> sorted(names_of_getter(operator.attrgetter("inner.scale", "rate")))
        ['inner', 'rate', 'scale']
    """
    if isinstance(getter, operator.itemgetter):
        return frozenset()
    texts = parts_of_getter(getter)
    named = texts[:1] if isinstance(getter, operator.methodcaller) else texts
    return frozenset(part for text in named for part in str(text).split("."))


def defaults_of(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the parameters of a function that have a default, each with it."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    yield from zip(names, values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def holds_tensors(value: object) -> bool:
    """Whether an object has tensors in its attributes, or in containers there.

    Example:
        >>> holds_tensors(UserDict(x=torch.ones(2))), holds_tensors(UserDict(x=1.0))
        (True, False)
    """
    if isinstance(value, torch.Tensor | torch.nn.Module | type | types.ModuleType):
        return False
    table = getattr(value, "__dict__", None)
    rows = [table] if isinstance(table, dict) else []
    slots = [getattr(value, name, None) for name in slots_of(type(value))]  # type: ignore[arg-type]
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((rows, slots)))


@cache
def names_of_torch(kind: type) -> frozenset[str]:
    """Return the names in the methods of torch's own modules, whose code is not watched."""
    found = {"training"}
    for base in kind.__mro__:
        if not is_torch(base) or base is torch.nn.Module:
            continue
        for name, method in vars(base).items():
            if isinstance(method, types.FunctionType) and name not in NOT_RUN:
                found.update(method.__code__.co_names)
    return frozenset(found)


NOT_RUN = frozenset(("__init__", "extra_repr", "__repr__", "reset_parameters", "__setstate__"))
