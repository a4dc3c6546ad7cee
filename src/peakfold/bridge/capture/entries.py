"""Entries of namespaces that must stay what they are: how they are kept, and compared."""

from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import is_
from types import MappingProxyType, MethodType
from typing import Any

import numpy as np
import torch

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
MOST = 64
"""Items of a container beyond which it is not written in words."""
_ELEMENTS = 1 << 20
"""Elements of an array beyond which it is not compared before each step."""
_DEEPEST = 16
"""Containers in containers that are compared."""
MOST_COPIED = 1 << 16
"""Items of a container, and of those in it, beyond which only which objects they are is compared."""
MISSING = object()
"""Stands for an entry that is not there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a namespace that must stay what it is.

    Attributes:
        table: the namespace, e.g. a module's globals or an object's ``__dict__``.
        key: name in it.
        value: what it holds; a copy where it is a container or an array, whose items must stay the same.
        label: what to call it.
    """

    table: Mapping[str, object]
    key: str
    value: object
    label: str

    @staticmethod
    def of(table: Mapping[str, object], key: str, label: str) -> "Entry":
        """Return the entry as it is now."""
        return Entry(table, key, copied(table.get(key, MISSING)), label)

    @property
    def is_plain(self) -> bool:
        """Whether it is a number, a text, an array, or a container of such."""
        return is_plain(self.value) or isinstance(self.value, np.ndarray)

    @property
    def is_one_object(self) -> bool:
        """Whether it holds if the namespace has the same object."""
        return self.value is MISSING or self.table.get(self.key) is self.value

    def holds(self) -> bool:
        """Whether it is what it was."""
        return _is_same(self.table.get(self.key, MISSING), self.value)

    def words(self) -> str:
        """Return what differs."""
        now = self.table.get(self.key, MISSING)
        if not all(
            value is MISSING or is_plain(value) or isinstance(value, np.ndarray)
            for value in (now, self.value)
        ):
            return f"{self.label} was {'removed' if now is MISSING else 'replaced or changed'}"
        then = "not there" if self.value is MISSING else repr(self.value)
        return f"{self.label} is {'gone' if now is MISSING else repr(now)}, captured as {then}"


def is_plain(value: object) -> bool:
    """Whether a value is a number, text, dtype or a small container of them.

    Example:
        >>> is_plain((1, "a")), is_plain({"scale": 2.0}), is_plain(object())
        (True, True, False)
    """
    if is_scalar(value):
        return True
    if isinstance(value, tuple | list | set | frozenset) and type(value).__module__ == "builtins":
        return len(value) <= MOST and all(map(is_plain, value))
    if type(value) is dict:
        return len(value) <= MOST and all(is_plain(k) and is_plain(v) for k, v in value.items())
    return False


def is_scalar(value: object) -> bool:
    """Whether a value is one number, text, dtype or device, or None."""
    return isinstance(value, _PLAIN)


def copied(value: object) -> object:
    """Return a copy of a container, its own containers copied too; everything else as it is."""
    return _copied(value, [MOST_COPIED])


def _copied(value: object, left: list[int], depth: int = _DEEPEST) -> object:
    if isinstance(value, np.ndarray):
        return value.copy() if value.size <= _ELEMENTS else value
    if isinstance(value, bytearray | array):
        return value[:] if len(value) <= _ELEMENTS else value
    if not isinstance(value, _CONTAINERS) or len(value) > left[0] or depth == 0:
        return value
    left[0] -= len(value)
    if isinstance(value, set):
        return set(value)
    if isinstance(value, dict | MappingProxyType):
        made = {key: _copied(item, left, depth - 1) for key, item in value.items()}
        return made if isinstance(value, dict) else MappingProxyType(made)
    items = [_copied(item, left, depth - 1) for item in value]
    if isinstance(value, list):
        return items
    if isinstance(value, deque):
        return deque(items)
    return value if all(map(is_, items, value)) else tuple(items)


_CONTAINERS = (dict, list, tuple, set, deque, MappingProxyType)


def _is_same(now: object, then: object) -> bool:
    """Whether two things are one object, equal numbers or texts, or containers of such in the same order."""
    if now is then:
        return True
    if isinstance(then, np.ndarray):
        return isinstance(now, np.ndarray) and _is_equal(now, then)
    for kind in (dict, MappingProxyType):
        if isinstance(then, kind):
            return (
                isinstance(now, kind)
                and len(now) == len(then)
                and _are_same(now, then)
                and _are_same(now.values(), then.values())
            )
    for row in (list, tuple, deque):
        if isinstance(then, row):
            return isinstance(now, row) and len(now) == len(then) and _are_same(now, then)
    if isinstance(then, float) and isinstance(now, float):
        return type(now) is type(then) and float.hex(now) == float.hex(then)  # zeros have signs
    if isinstance(then, array):
        return isinstance(now, array) and now.typecode == then.typecode and now.tobytes() == then.tobytes()
    return type(now) is type(then) and isinstance(then, _COMPARED) and now == then


def _are_same(now: Iterable[object], then: Iterable[object]) -> bool:
    """Whether as many things are the same, one by one; most are one object."""
    return all(map(is_, now, then)) or all(map(_is_same, now, then))


_COMPARED = (*_PLAIN, set, frozenset, bytearray, MethodType)


def _is_equal(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays hold the same bytes in the same form."""
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and one.tobytes() == other.tobytes()
