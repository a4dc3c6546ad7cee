"""Entries of namespaces that must stay what they are: how they are kept, and compared."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
MOST = 64
"""Items of a container beyond which it is not compared before each step."""
_ELEMENTS = 1 << 16
"""Elements of an array beyond which it is not compared before each step."""
_DEEPEST = 4
"""Containers in containers that are compared."""
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
        return Entry(table, key, _copied(table.get(key, MISSING)), label)

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


def _copied(value: object, depth: int = _DEEPEST) -> object:
    """Return a copy of a container, its own containers copied too; everything else as it is."""
    if isinstance(value, np.ndarray):
        return value.copy() if value.size <= _ELEMENTS else value
    if not isinstance(value, dict | list | tuple | set) or len(value) > MOST or depth == 0:
        return value
    if isinstance(value, set):
        return set(value)
    if isinstance(value, dict):
        return {key: _copied(item, depth - 1) for key, item in value.items()}
    items = [_copied(item, depth - 1) for item in value]
    if isinstance(value, list):
        return items
    return value if all(a is b for a, b in zip(items, value, strict=True)) else tuple(items)


def _is_same(now: object, then: object) -> bool:
    """Whether two things are one object, equal numbers or texts, or containers of such."""
    if now is then:
        return True
    if isinstance(then, np.ndarray):
        return isinstance(now, np.ndarray) and _is_equal(now, then)
    if isinstance(then, dict):
        return (
            isinstance(now, dict)
            and now.keys() == then.keys()
            and all(_is_same(now[k], then[k]) for k in then)
        )
    for kind in (list, tuple):
        if isinstance(then, kind):
            return isinstance(now, kind) and len(now) == len(then) and all(map(_is_same, now, then))
    return type(now) is type(then) and isinstance(then, _COMPARED) and now == then


_COMPARED = (*_PLAIN, set, frozenset, types.MethodType)


def _is_equal(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays hold the same bytes in the same form."""
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and one.tobytes() == other.tobytes()


class Cells(Mapping[str, object]):
    """A closure cell as a namespace of one entry."""

    def __init__(self, cell: types.CellType) -> None:
        self._cell = cell

    def __getitem__(self, key: str) -> object:
        try:
            return self._cell.cell_contents
        except ValueError:
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1


class Slots(Mapping[str, object]):
    """The attributes of an object that has no ``__dict__``."""

    def __init__(self, of: object) -> None:
        self._of = of

    def __getitem__(self, key: str) -> object:
        try:
            return getattr(self._of, key)
        except AttributeError:
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[str]:
        kinds = type(self._of).__mro__
        named = (vars(kind).get("__slots__", ()) for kind in kinds)
        return iter([name for names in named for name in ((names,) if isinstance(names, str) else names)])

    def __len__(self) -> int:
        return len(list(self))
