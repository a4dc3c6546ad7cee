"""Plain values and containers as they were at some time, to be compared with what they are later."""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from torch._subclasses.fake_tensor import FakeTensor

from peakfold.bridge.capture.entries import is_scalar

DEEPEST = 4
"""Containers in containers that are followed."""
MOST = 4096
"""Items of a container beyond which only their number is compared."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A value as it was.

    Attributes:
        value: the object itself.
        items: of a container, what was in it; of an array, its bytes and form; None for everything else.
    """

    value: object
    items: Mapping[object, "Kept"] | None = None

    @staticmethod
    def of(value: object, depth: int = DEEPEST) -> "Kept":
        """Return a value as it is now."""
        if isinstance(value, np.ndarray) and value.size <= MOST and not value.dtype.hasobject:
            return Kept(value, {_ARRAY: Kept(value.tobytes()), _FORM: Kept(f"{value.shape} {value.dtype}")})
        if not isinstance(value, dict | list | tuple | deque | set) or depth == 0:
            return Kept(value)
        if len(value) > MOST:
            return Kept(value, {_LENGTH: Kept(len(value))})
        if isinstance(value, set):
            return Kept(value, {item: Kept(None) for item in value})
        rows = dict.items(value) if isinstance(value, dict) else enumerate(value)
        return Kept(value, {key: Kept.of(item, depth - 1) for key, item in rows})

    def same(self, now: "Kept") -> bool:
        """Whether a later value is the same; any object that is no plain value is like any other.

        Example:
            >>> log = [1.5]
            >>> before = Kept.of(log)
            >>> log.append(2.5)
            >>> before.same(Kept.of(log)), Kept.of(object()).same(Kept.of(object()))
            (False, True)
        """
        if self.items is not None and now.items is not None:
            alike = type(self.value) is type(now.value) and self.items.keys() == now.items.keys()
            return alike and all(old.same(now.items[key]) for key, old in self.items.items())
        if is_scalar(self.value) or is_scalar(now.value):
            return type(self.value) is type(now.value) and _equal(self.value, now.value)
        return (self.items is None) == (now.items is None)

    def filled(self, now: "Kept") -> bool:
        """Whether a later value only has what was missing before, as a cache that is made when needed.

        Example:
            >>> Kept.of({"a": 1}).filled(Kept.of({"a": 1, "b": 2})), Kept.of(False).filled(Kept.of(True))
            (True, False)
        """
        if self.value is None or self.same(now):
            return True
        if self.items is None or now.items is None or type(self.value) is not type(now.value):
            return False
        if isinstance(self.value, tuple | np.ndarray) or _LENGTH in self.items:
            return False
        return all(key in now.items and old.filled(now.items[key]) for key, old in self.items.items())

    def put_back(self) -> None:
        """Have a container, and those in it, hold what they held."""
        if self.items is None or _LENGTH in self.items:
            return
        for item in self.items.values():
            item.put_back()
        held = self.value
        if isinstance(held, dict):
            held.clear()
            held.update({key: item.value for key, item in self.items.items()})
        elif isinstance(held, set):
            held.clear()
            held.update(self.items)
        elif isinstance(held, np.ndarray):
            content = self.items[_ARRAY].value
            assert isinstance(content, bytes)
            held[...] = np.frombuffer(content, held.dtype).reshape(held.shape)
        elif isinstance(held, list | deque):
            held.clear()
            held.extend(item.value for item in self.items.values())

    def fakes(self) -> Iterator[FakeTensor]:
        """Yield the fake tensors in it."""
        for item in (self.items or {}).values():
            yield from item.fakes()
        if isinstance(self.value, FakeTensor):
            yield self.value

    def words(self) -> str:
        """Return it as a short text."""
        if self.items is None:
            text = repr(self.value)
            return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        held = self.value
        count = self.items[_LENGTH].value if _LENGTH in self.items else len(self.items)
        size = f"shape {held.shape}" if isinstance(held, np.ndarray) else _count(count)
        return f"{type(held).__name__} of {size}"


_LENGTH = object()
_ARRAY, _FORM = object(), object()
_LONGEST = 60


def _equal(old: object, now: object) -> bool:
    if isinstance(old, float) and isinstance(now, float) and math.isnan(old):
        return math.isnan(now)
    return old == now


def _count(items: object) -> str:
    return f"{items} item{'' if items == 1 else 's'}"
