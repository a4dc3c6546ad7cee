"""Where the model's code may write Python values: attributes, items, globals, closures."""

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor

from peakfold.bridge.capture.bytecode import globals_of, stores_of
from peakfold.bridge.capture.entries import MISSING, is_scalar
from peakfold.bridge.capture.insides import parts_of
from peakfold.bridge.capture.namespaces import Cells
from peakfold.bridge.capture.owners import is_foreign, is_volatile
from peakfold.bridge.capture.places import is_model_code
from peakfold.bridge.capture.python_values import DEEPEST, MOST, Kept

Cache: TypeAlias = "functools._lru_cache_wrapper[object]"

_MOST_FUNCTIONS = 256
"""Functions whose globals and closures are followed."""


@dataclass(frozen=True, eq=False)
class Namespace:
    """Names that code may bind anew.

    Attributes:
        owner: attributes or globals, a class, or a closure cell.
        label: what comes before a name of it; of a cell, the function that closes over it.
        names: those that count; None for all.
        of_module: whether it is a module of the model.
        is_global: whether it is the globals of a file.
    """

    owner: dict[str, object] | type | types.CellType
    label: str
    names: frozenset[str] | None = None
    of_module: bool = False
    is_global: bool = False

    @property
    def table(self) -> Mapping[str, object]:
        """What the names are bound to now."""
        if isinstance(self.owner, types.CellType):
            return Cells(self.owner)
        return vars(self.owner) if isinstance(self.owner, type) else self.owner

    def kept(self, name: str) -> Kept | None:
        """Return what a name is bound to now; None for nothing."""
        value = self.table.get(name, MISSING)
        return None if value is MISSING else Kept.of(value)

    def now(self) -> dict[str, Kept]:
        """Return what it holds."""
        names = self.table.keys() - _OF_TORCH if self.names is None else self.names
        found = {name: self.kept(name) for name in names}
        return {name: kept for name, kept in found.items() if kept is not None}

    def put_back(self, name: str, old: Kept | None) -> None:
        """Have a name be bound to what it was, with all that was in it."""
        if old is not None:
            old.put_back()
        if isinstance(self.owner, types.CellType):
            self.owner.cell_contents = None if old is None else old.value
        elif isinstance(self.owner, type):
            delattr(self.owner, name) if old is None else setattr(self.owner, name, old.value)
        elif old is None:
            self.owner.pop(name, None)
        else:
            self.owner[name] = old.value


_OF_TORCH = frozenset(torch.nn.Module().__dict__) - {"training"}


@dataclass(frozen=True)
class Change:
    """A name that holds something else than before.

    Attributes:
        space: where the name is.
        name: the name.
        old: what it held; None where it was not there.
        new: what it holds; None where it is not there any more.
    """

    space: Namespace
    name: str
    old: Kept | None
    new: Kept | None

    @property
    def words(self) -> str:
        """What to call it."""
        if isinstance(self.space.owner, types.CellType):
            return f"{self.name}, which {self.space.label} closes over"
        if self.space.is_global:
            return f"the global {self.space.label}{self.name}"
        return f"the Python attribute {self.space.label}{self.name}"

    @property
    def is_filled(self) -> bool:
        """Whether only what was missing came to be there."""
        return self.old is None or (self.new is not None and self.old.filled(self.new))

    def tensors(self) -> list[FakeTensor]:
        """Return the fake tensors that it holds and did not hold."""
        before = set() if self.old is None else set(map(id, self.old.fakes()))
        return [] if self.new is None else [fake for fake in self.new.fakes() if id(fake) not in before]

    def undo(self) -> None:
        """Have the name hold what it held."""
        self.space.put_back(self.name, self.old)


@dataclass(frozen=True, eq=False)
class PythonState:
    """What names that code may bind anew hold.

    Attributes:
        spaces: where the names are.
        held: what each holds, by name.
        caches: functions that keep what they returned, each with how often it was not there yet.
    """

    spaces: tuple[Namespace, ...] = ()
    held: tuple[Mapping[str, Kept], ...] = ()
    caches: tuple[tuple[Cache, int], ...] = ()

    @staticmethod
    def of(model: torch.nn.Module, function: Callable[..., object]) -> "PythonState":
        """Return what can be reached from a model and the function that runs it."""
        walk = _Walk()
        return PythonState._now(tuple(walk.everything(model, function)), tuple(walk.caches))

    @staticmethod
    def _now(spaces: tuple[Namespace, ...], caches: tuple[Cache, ...]) -> "PythonState":
        misses = ((cache, cache.cache_info().misses) for cache in caches)
        return PythonState(spaces, tuple(space.now() for space in spaces), tuple(misses))

    def later(self) -> "PythonState":
        """Return what the same names hold now."""
        return PythonState._now(self.spaces, tuple(cache for cache, _ in self.caches))

    def forget(self) -> None:
        """Empty the caches that something came into since: it may hold what only the capture knows."""
        for cache, misses in self.caches:
            if cache.cache_info().misses != misses:
                cache.cache_clear()

    def changes(self, now: "PythonState") -> list[Change]:
        """Return what is otherwise in a later state."""
        return [found for found in self._pairs(now) if not is_same(found.old, found.new)]

    def kept(self, now: "PythonState") -> list[Change]:
        """Return what holds fake tensors in a later state that it does not hold in this."""
        return [found for found in self._pairs(now) if found.tensors()]

    def _pairs(self, now: "PythonState") -> Iterator[Change]:
        for space, old, new in zip(self.spaces, self.held, now.held, strict=True):
            for name in sorted(old.keys() | new.keys()):
                yield Change(space, name, old.get(name), new.get(name))


def is_same(old: Kept | None, new: Kept | None) -> bool:
    """Whether a name holds the same as before; None stands for nothing."""
    if old is None or new is None:
        return old is new
    return old.same(new)


@dataclass(eq=False)
class _Walk:
    """Follows objects and functions to the namespaces that they may write."""

    caches: list[Cache] = field(default_factory=list)
    _seen: dict[int, object] = field(default_factory=dict)
    _functions: int = 0

    def everything(self, model: torch.nn.Module, function: Callable[..., object]) -> Iterator[Namespace]:
        yield from self._modules(model, "", of_module=True)
        yield from self._value(function, f"{type(function).__name__}.", DEEPEST)

    def _modules(self, root: torch.nn.Module, prefix: str, *, of_module: bool = False) -> Iterator[Namespace]:
        for path, module in root.named_modules():
            if self._is_known(module):
                continue
            label = f"{prefix}{path}." if path else prefix
            table = module.__dict__
            yield Namespace(table, label, of_module=of_module)
            for name in sorted(table.keys() - _OF_TORCH):
                yield from self._value(table[name], f"{label}{name}.", DEEPEST)
            for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
                yield from self._value(hook, f"{type(hook).__name__}.", DEEPEST)
            yield from self._class(type(module))

    def _value(self, value: object, label: str, depth: int) -> Iterator[Namespace]:
        if depth == 0 or is_scalar(value) or isinstance(value, torch.Tensor | types.ModuleType):
            return
        if isinstance(value, torch.nn.Module):
            yield from self._modules(value, label)
        elif is_volatile(value) or self._is_known(value):
            return
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.caches.append(value)
            yield from self._value(value.__wrapped__, label, depth)
        elif isinstance(value, types.MethodType | partial):
            for part in parts_of(value, MOST):
                yield from self._value(part, f"{type(part).__name__}.", depth)
        elif isinstance(value, dict | list | tuple | deque):
            for item in parts_of(value, MOST):
                yield from self._value(item, f"{label}item.", depth - 1)
        elif isinstance(value, type):
            yield from self._class(value)
        else:
            yield from self._object(value, label, depth)

    def _object(self, value: object, label: str, depth: int) -> Iterator[Namespace]:
        kind, table = type(value), getattr(value, "__dict__", None)
        if not isinstance(table, dict) or _is_foreign(kind):
            return
        yield Namespace(table, label)
        for name in list(table):
            yield from self._value(table[name], f"{label}{name}.", depth - 1)
        yield from self._class(kind)

    def _class(self, kind: type) -> Iterator[Namespace]:
        for base in kind.__mro__:
            if _is_foreign(base) or self._is_known(base):
                continue
            held = vars(base)
            data = frozenset(name for name in held if _is_data(name, held[name]))
            yield Namespace(base, f"{base.__qualname__}.", data)
            for value in list(held.values()):
                if isinstance(value, types.FunctionType | functools._lru_cache_wrapper):
                    yield from self._value(value, "", DEEPEST)

    def _function(self, function: types.FunctionType) -> Iterator[Namespace]:
        code, table = function.__code__, function.__globals__
        if not is_model_code(code) or self._functions >= _MOST_FUNCTIONS:
            return
        self._functions += 1
        read = frozenset(name for name in globals_of(code) if name in table)
        data = frozenset(name for name in read if _is_data(name, table[name])) | stores_of(code).globals
        yield Namespace(table, f"{table.get('__name__', '')}.", data, is_global=True)
        for name in sorted(read - data):
            yield from self._value(table[name], f"{name}.", DEEPEST)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield Namespace(cell, function.__qualname__, frozenset((name,)))
            yield from self._value(Cells(cell).get(name), f"{name}.", DEEPEST)
        defaults = function.__defaults__ or ()
        held: dict[str, object] = {f"default_{index}": value for index, value in enumerate(defaults)}
        yield Namespace(held, f"{function.__qualname__}.")

    def _is_known(self, value: object) -> bool:
        known = id(value) in self._seen
        self._seen[id(value)] = value
        return known


def _is_foreign(kind: type) -> bool:
    """Whether a class is torch's or Python's own; what only has attributes is its user's."""
    return kind is not types.SimpleNamespace and is_foreign(kind)


def _is_data(name: str, value: object) -> bool:
    return not name.startswith("__") and (
        is_scalar(value) or isinstance(value, dict | list | tuple | set | deque)
    )
