"""What Python the model's code reads: globals, closures and attributes that decide what it computes."""

import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

import torch

from peakfold.bridge.capture.entries import MISSING, MOST, Cells, Entry, Slots
from peakfold.bridge.capture.ran import ExecutedCode, globals_of

_DEPTH = 4
"""How many attributes of attributes, or items, are followed."""


@dataclass(eq=False)
class Reader:
    """Follows what code reads, from globals, closures and modules to objects and their attributes.

    An attribute counts where the code has its name. Which object is there counts as much as what is in
    it, but where the code itself sets the attribute: then it is what the last run in Python left.

    Attributes:
        code: what ran.
        model: what it ran on.
        others: modules that it reads beside the model, e.g. a criterion; complete after `everything`.
    """

    code: ExecutedCode
    model: torch.nn.Module
    others: list[torch.nn.Module] = field(default_factory=list)
    _seen: dict[int, object] = field(default_factory=dict)
    _of_classes: set[tuple[int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._names, self._stored = self.code.names, self.code.stored
        self._seen.update((id(module), module) for module in self.model.modules())

    def everything(self, function: Callable[..., object]) -> Iterator[Entry]:
        """Yield all that was read by a function that was called with the model."""
        yield from self._modules(self.model, "")
        yield from absences_read(self.model, self.code)
        for ran, table in self.code.ran.items():
            where = str(table.get("__name__", ""))
            for name in sorted(name for name in globals_of(ran) if name in table and not _is_dunder(name)):
                yield from self._held(table, name, f"the global {where}.{name}", f"{where}.{name}")
        yield from self._inside(function, f"{type(function).__name__} in a closure", _DEPTH)
        for module in self.others:
            yield from self._modules(module, f"{type(module).__name__}.")
            for part in module.modules():
                yield from (Entry.of(part._buffers, key, key) for key in part._buffers)

    def _modules(self, root: torch.nn.Module, prefix: str) -> Iterator[Entry]:
        for path, module in root.named_modules():
            before = f"{prefix}{path}." if path else prefix
            table: Mapping[str, object] = module.__dict__
            names = self._names | _names_of(type(module))  # type: ignore[arg-type]
            for key in sorted(names & table.keys() - _TABLES):
                yield from self._held(table, key, f"{before}{key}", f"{before}{key}")
            yield from self._class(type(module), before, table, _DEPTH)
            if "forward" not in table:
                yield Entry(table, "forward", MISSING, f"{before}forward")

    def _held(
        self, table: Mapping[str, object], key: str, label: str, inner: str, depth: int = _DEPTH
    ) -> Iterator[Entry]:
        value = table.get(key, MISSING)
        if value is MISSING or is_volatile(value):
            return
        found = Entry.of(table, key, label)
        if found.is_plain or key not in self._stored:
            yield found
        if not found.is_plain:
            yield from self._inside(value, inner, depth - 1)

    def _inside(self, value: object, label: str, depth: int) -> Iterator[Entry]:
        if depth < 0 or id(value) in self._seen or isinstance(value, torch.Tensor):
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.nn.Module):
            self.others.append(value)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value) if value.__code__ in self.code.ran else ()
        elif isinstance(value, dict | list | tuple | partial | types.MethodType):
            for part in _parts(value):
                yield from self._inside(part, f"an item of {label}", depth - 1)
        elif not is_torch(value) and not is_standard(value):
            yield from self._object(value, label, depth)

    def _function(self, function: types.FunctionType) -> Iterator[Entry]:
        name = function.__qualname__
        for key, value in _defaults(function):
            if isinstance(value, dict | list | set):
                yield Entry.of({key: value}, key, f"{key}, a default of {name}")
            yield from self._inside(value, f"{key}, a default of {name}", _DEPTH)
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            held = Cells(cell)
            inner = f"{type(held.get(key)).__name__} in a closure"
            if not _is_dunder(key):
                yield from self._held(held, key, f"{key}, which {name} closes over", inner)

    def _object(self, value: object, label: str, depth: int) -> Iterator[Entry]:
        kind = value if isinstance(value, type) else type(value)
        table: Mapping[str, object] | None = getattr(value, "__dict__", None)
        if not isinstance(table, Mapping):
            table = Slots(value)
        if not isinstance(value, type):
            for name in sorted(self._names.intersection(table)):
                if not _is_dunder(name):
                    yield from self._held(table, name, f"{label}.{name}", f"{label}.{name}", depth)
        if not isinstance(value, types.ModuleType):
            yield from self._class(kind, f"{label}.", None if isinstance(value, type) else table, depth)

    def _class(
        self, kind: type, prefix: str, table: Mapping[str, object] | None, depth: int
    ) -> Iterator[Entry]:
        """Yield what is read of a class, and of an object that might get an attribute of its own instead."""
        for base in kind.__mro__:
            if is_torch(base) or is_standard(base):
                continue
            held = vars(base)
            for name in sorted((self._names | _CALLED) & held.keys()):
                if _is_dunder(name) and name not in _CALLED:
                    continue
                if (id(base), name) not in self._of_classes:
                    self._of_classes.add((id(base), name))
                    label = f"{base.__qualname__}.{name}"
                    yield from self._held(held, name, label, label, depth)
                if (
                    table is not None
                    and not isinstance(table, Slots)
                    and not {name} & (table.keys() | self._stored)
                ):
                    yield Entry(table, name, MISSING, f"{prefix}{name}")


_CALLED = frozenset(("forward", "__call__"))


def _parts(value: object) -> list[object]:
    """Return what a container or a bound function holds; nothing of a large one."""
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    assert isinstance(value, dict | list | tuple)
    if len(value) > MOST:
        return []
    return list(value.values() if isinstance(value, dict) else value)


def _is_dunder(name: str) -> bool:
    return name.startswith("__")


def _root_of(value: object) -> str:
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "")
    return name.partition(".")[0] if isinstance(name, str) else ""


def is_standard(value: object) -> bool:
    """Whether a module or class is Python's own."""
    return isinstance(value, types.ModuleType | type) and _root_of(value) in sys.stdlib_module_names


def is_volatile(value: object) -> bool:
    """Whether an object changes with what runs around the program: loggers, locks, streams."""
    return _root_of(type(value)) in _VOLATILE


_VOLATILE = frozenset(
    ("logging", "threading", "_thread", "contextvars", "_contextvars", "_io", "io", "weakref")
)


def is_torch(value: object) -> bool:
    """Whether a module or class, or an object's class, is torch's own."""
    return _root_of(value) == "torch"


def _defaults(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    yield from zip(names, values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


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
