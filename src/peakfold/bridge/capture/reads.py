"""What Python the model's code reads: globals, closures and attributes that decide what it computes."""

import cProfile
import gc
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from peakfold.bridge.capture.places import is_model_code

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_MOST = 64
_ELEMENTS = 1 << 16
"""Elements of an array beyond which it is not compared before each step."""
MISSING = object()
"""Stands for an entry that is not there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a namespace that must stay what it is.

    Attributes:
        table: the namespace, e.g. a module's globals or an object's ``__dict__``.
        key: name in it.
        value: what it holds; a copy where it is a list, dict or set.
        label: what to call it.
    """

    table: Mapping[str, object]
    key: str
    value: object
    label: str

    def holds(self) -> bool:
        """Whether it is what it was."""
        now = self.table.get(self.key, MISSING)
        if isinstance(self.value, np.ndarray):
            return isinstance(now, np.ndarray) and _is_equal(now, self.value)
        return now is self.value or (type(now) is type(self.value) and now == self.value)

    def words(self) -> str:
        """Return what differs."""
        now = self.table.get(self.key, MISSING)
        then = "not there" if self.value is MISSING else repr(self.value)
        return f"{self.label} is {'gone' if now is MISSING else repr(now)}, captured as {then}"


@dataclass(eq=False)
class ExecutedCode:
    """The model's code that ran, each with the globals that it ran in.

    Attributes:
        ran: globals by code.
        variables: names of the environment variables that were read.
    """

    ran: dict[types.CodeType, Mapping[str, object]] = field(default_factory=dict)
    variables: dict[str, None] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the code that starts to run inside; torch's own does not count.

        No garbage is collected meanwhile: what runs then is not called by the model.
        """
        ran = self.ran
        before = sys.getprofile()

        def note(frame: types.FrameType, event: str, arg: object) -> None:
            if event == "call" and frame.f_code not in ran and is_model_code(frame.f_code):
                ran[frame.f_code] = frame.f_globals

        collecting = gc.isenabled()
        gc.disable()
        sys.setprofile(note)
        try:
            yield
        finally:
            _set_profiler(before)
            if collecting:
                gc.enable()

    @property
    def names(self) -> frozenset[str]:
        """Every global and attribute name in the code, those that ``getattr`` is given included."""
        texts = (text for code in self.ran for text in code.co_consts if isinstance(text, str))
        read = frozenset(name for code in self.ran for name in code.co_names)
        return read.union(text for text in texts if text.isidentifier())


def _set_profiler(profiler: object) -> None:
    """Set a profiler again; one of cProfile's is no function and has its own way."""
    if isinstance(profiler, cProfile.Profile):
        sys.setprofile(None)
        profiler.enable()
    else:
        sys.setprofile(profiler)  # type: ignore[arg-type]


def is_plain(value: object) -> bool:
    """Whether a value is a number, text, dtype or a small container of them.

    Example:
        >>> is_plain((1, "a")), is_plain({"scale": 2.0}), is_plain(object())
        (True, True, False)
    """
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, tuple | list | set | frozenset) and type(value).__module__ == "builtins":
        return len(value) <= _MOST and all(map(is_plain, value))
    if type(value) is dict:
        return len(value) <= _MOST and all(is_plain(k) and is_plain(v) for k, v in value.items())
    return False


def entry(table: Mapping[str, object], key: str, label: str) -> Entry | None:
    """Return the entry of a namespace where it holds something plain or an array of NumPy, else None."""
    value = table.get(key, MISSING)
    if not is_plain(value) and not (isinstance(value, np.ndarray) and value.size <= _ELEMENTS):
        return None
    return Entry(table, key, _copied(value), label)


def _copied(value: object) -> object:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value.copy() if isinstance(value, set | np.ndarray) else value


def _is_equal(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays hold the same bytes in the same form."""
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and one.tobytes() == other.tobytes()


def globals_read(code: ExecutedCode) -> Iterator[Entry]:
    """Yield what code reads of globals, of modules and of objects that globals name."""
    names = code.names
    for ran, table in code.ran.items():
        where = str(table.get("__name__", ""))
        for name in ran.co_names:
            if name in table and not name.startswith("__"):
                yield from _named(table, name, f"{where}.{name}", names)


def _named(table: Mapping[str, object], name: str, label: str, names: frozenset[str]) -> Iterator[Entry]:
    plain = entry(table, name, f"the global {label}")
    if plain is not None:
        yield plain
        return
    yield from attributes_read(table[name], label, names)


def attributes_read(value: object, label: str, names: frozenset[str], depth: int = 3) -> Iterator[Entry]:
    """Yield the plain attributes of a module, class or object that have one of some names.

    Args:
        value: the object.
        label: what to call it.
        names: attribute names that the code has.
        depth: how many attributes of attributes to follow.
    """
    if isinstance(value, torch.Tensor | torch.nn.Module | types.FunctionType) or is_torch(value):
        return
    table = getattr(value, "__dict__", None)
    if not isinstance(table, Mapping):
        return
    for name in sorted(name for name in names & table.keys() if not name.startswith("__")):
        found = entry(table, name, f"{label}.{name}")
        if found is not None:
            yield found
        elif depth > 0:
            yield from attributes_read(table[name], f"{label}.{name}", names, depth - 1)


def is_torch(value: object) -> bool:
    """Whether a module or class is torch's own."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "")
    return isinstance(name, str) and (name == "torch" or name.startswith("torch."))


def closures_read(function: Callable[..., object], code: ExecutedCode) -> Iterator[Entry]:
    """Yield what a function closes over, and what the functions in there close over."""
    names, seen = code.names, set[int]()
    waiting: list[object] = [function]
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, partial):
            waiting += [found.func, *found.args, *found.keywords.values()]
        elif isinstance(found, types.MethodType):
            waiting += [found.__func__, found.__self__]
        elif isinstance(found, types.FunctionType):
            yield from _cells(found, waiting)
        else:
            yield from attributes_read(found, f"{type(found).__name__} in a closure", names)


def _cells(function: types.FunctionType, waiting: list[object]) -> Iterator[Entry]:
    for name, value in _defaults(function):
        if isinstance(value, dict | list | set) and is_plain(value):
            yield Entry({name: value}, name, _copied(value), f"{name}, a default of {function.__qualname__}")
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        table = Cells(cell)
        found = entry(table, name, f"{name}, which {function.__qualname__} closes over")
        if found is not None:
            yield found
        else:
            waiting.append(table.get(name))


def _defaults(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    yield from zip(names, values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


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


def modules_read(model: torch.nn.Module, code: ExecutedCode) -> Iterator[Entry]:
    """Yield the plain attributes of every module that code reads, and of objects in them."""
    names, seen = code.names, set[int]()
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        table: Mapping[str, object] = module.__dict__
        for key in sorted((names | _names_of(type(module))) & table.keys() - _TABLES):  # type: ignore[arg-type]
            found = entry(table, key, f"{prefix}{key}")
            if found is not None:
                yield found
            elif id(table[key]) not in seen:
                seen.add(id(table[key]))
                yield from attributes_read(table[key], f"{prefix}{key}", names)


def absences_read(model: torch.nn.Module, code: ExecutedCode) -> Iterator[Entry]:
    """Yield attributes that modules do not have and whose own code asks for by ``hasattr`` or ``getattr``."""
    asking = {ran: _asked_for(ran) for ran in code.ran if _ASKING & frozenset(ran.co_names)}
    if not asking:
        return
    methods = frozenset(found for module in model.modules() for found in _methods(module))
    everywhere = frozenset().union(*(texts for ran, texts in asking.items() if ran not in methods))
    for path, module in model.named_modules():
        own = (asking[found] for found in _methods(module) if found in asking)
        for name in sorted(frozenset().union(*own, everywhere if module is model else ())):
            if not hasattr(module, name):
                yield Entry(module.__dict__, name, MISSING, f"{path}.{name}" if path else name)


_ASKING = frozenset(("hasattr", "getattr"))


def _asked_for(code: types.CodeType) -> frozenset[str]:
    return frozenset(text for text in code.co_consts if isinstance(text, str) and text.isidentifier())


def _methods(module: torch.nn.Module) -> frozenset[types.CodeType]:
    return _methods_of(type(module))  # type: ignore[arg-type]


@cache
def _methods_of(kind: type) -> frozenset[types.CodeType]:
    held = (value for base in kind.__mro__ for value in vars(base).values())
    return frozenset(value.__code__ for value in held if isinstance(value, types.FunctionType))


@cache
def _names_of(kind: type) -> frozenset[str]:
    """Return the names in the methods of torch's own modules, whose code is not watched."""
    found = {"training"}
    for base in kind.__mro__:
        if not is_torch(base) or base is torch.nn.Module:
            continue
        for name, method in vars(base).items():
            if isinstance(method, types.FunctionType) and name not in _NOT_RUN:
                found.update(method.__code__.co_names)
    return frozenset(found)


_NOT_RUN = frozenset(("__init__", "extra_repr", "__repr__", "reset_parameters", "__setstate__"))

_TABLES = frozenset(
    ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_forward_hooks",
     "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs",
     "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called", "_state_dict_hooks",
     "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
     "_is_full_backward_hook", "_is_hf_initialized")
)  # fmt: skip
