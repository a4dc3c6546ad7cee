"""What Python the model's code reads: globals, closures and attributes that decide what it computes."""

import builtins
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from threading import local

import torch

from peakfold.bridge.capture.absences import absences_read, names_asked_for
from peakfold.bridge.capture.bytecode import globals_of, imports_of, loops_of, owner_of, stores_of
from peakfold.bridge.capture.clocks import check_repeats
from peakfold.bridge.capture.entries import MISSING, Entry, is_plain
from peakfold.bridge.capture.insides import (
    GETTERS,
    NOT_RUN,
    WITH_PARTS,
    WRAPPERS,
    defaults_of,
    hooks_of,
    names_in,
    names_of_getter,
    names_of_torch,
    parts_of,
    parts_of_getter,
    properties_of,
    slots_of,
    wrapped,
)
from peakfold.bridge.capture.loggers import LOGGERS, asks_for_levels, levels_of
from peakfold.bridge.capture.namespaces import Attributes, Cells, Names, OwnStep, Variable
from peakfold.bridge.capture.owners import is_dunder, is_standard, is_torch, is_volatile
from peakfold.bridge.capture.places import is_model_code
from peakfold.bridge.capture.ran import ExecutedCode
from peakfold.bridge.capture.surroundings import answers_read, modules_read

_DEPTH = 8
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
        self._names = self.code.names
        self._asked = names_asked_for(self.code)
        self._asks_for_levels = asks_for_levels(self._names)
        self._sets = [(owner_of(ran), stores_of(ran)) for ran in self.code.ran]
        self._set_anywhere = frozenset().union(*(stores.attributes for _, stores in self._sets))
        self._set_globals = frozenset().union(*(stores.globals for _, stores in self._sets))
        self._set_cells = frozenset().union(*(stores.cells for _, stores in self._sets))
        self._loops = frozenset().union(*map(loops_of, self.code.ran))
        self._named: frozenset[str] = frozenset()
        self._begin(frozenset())

    def _begin(self, names: frozenset[str]) -> None:
        self._names, self._asked = self._names | names, self._asked | names
        self._seen.clear()
        self._seen.update((id(module), module) for module in self.model.modules())
        self._of_classes.clear()
        self.others.clear()

    def everything(
        self,
        function: Callable[..., object],
        optimizer: torch.optim.Optimizer | None,
        given: Sequence[object],
    ) -> Iterator[Entry]:
        """Yield all that was read.

        Args:
            function: it was called with the model.
            optimizer: whose step was run, or None.
            given: objects in the batch.

        Raises:
            CaptureError: of what was read, the value is another each time.
        """
        found = list(self._everything(function, optimizer, given))
        while not self._named <= self._names & self._asked:  # known only once their getters are reached
            self._begin(self._named)
            found = list(self._everything(function, optimizer, given))
        yield from found

    def _everything(
        self,
        function: Callable[..., object],
        optimizer: torch.optim.Optimizer | None,
        given: Sequence[object],
    ) -> Iterator[Entry]:
        yield from self._modules(self.model, "")
        yield from absences_read(self.model, self.code)
        yield from answers_read(self.code)
        for logger in self.code.loggers.values() if self._asks_for_levels else ():
            yield from levels_of(logger)
        for entry, loaded in modules_read(self.code):
            yield entry
            yield from self._inside(loaded, entry.key, _DEPTH) if loaded is not None else ()
        for ran, table in self.code.ran.items():
            yield from self._globals(ran, table)
        yield from self._inside(function, f"{type(function).__name__} in a closure", _DEPTH)
        for thing in given:
            yield from self._inside(thing, f"{type(thing).__name__} in the batch", _DEPTH)
        if optimizer is not None:
            yield from self._optimizer(optimizer)
        for module in self.others:
            yield from self._modules(module, f"{type(module).__name__}.")
            for part in module.modules():
                yield from (Entry.of(part._buffers, key, key) for key in part._buffers)

    def _globals(self, ran: types.CodeType, table: Mapping[str, object]) -> Iterator[Entry]:
        where = str(table.get("__name__", ""))
        found = globals_of(ran)
        if "globals" in found:
            found |= {name for name, value in table.items() if is_plain(value)}
            objects = frozenset(name for name, value in table.items() if not is_plain(value))
            yield _names_in(table, objects | self._set_globals, f"the globals of {where}")
        for name in sorted(name for name in found if not is_dunder(name)):
            label = f"{where}.{name}"
            if name in table:
                yield from self._held(table, name, f"the global {label}", label, self._set_globals)
            elif name in vars(builtins):
                yield Entry(table, name, MISSING, f"the global {label}")
                yield Entry.of(vars(builtins), name, f"the builtin {name}")
        for module, taken in imports_of(ran, table):
            for name in taken:
                label = f"{module.__name__}.{name}"
                yield from self._held(vars(module), name, label, label, self._set_globals)
            yield from self._inside(module, module.__name__, _DEPTH)

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> Iterator[Entry]:
        kind = type(optimizer)
        yield Entry(OwnStep(optimizer), "step", MISSING, f"step of the {kind.__name__}")
        for base in kind.__mro__:
            yield Entry.of(vars(base), "step", f"{base.__qualname__}.step")
            if "step" in vars(base):
                break
        if is_torch(kind):
            return
        for name in sorted(self._names & optimizer.__dict__.keys() - _OF_OPTIMIZERS):
            label = f"{kind.__name__}.{name}"
            yield from self._held(optimizer.__dict__, name, label, label, self._set_of(kind))
        yield from self._class(kind, f"{kind.__name__}.", None, _DEPTH)

    def _modules(self, root: torch.nn.Module, prefix: str) -> Iterator[Entry]:
        for path, module in root.named_modules():
            before = f"{prefix}{path}." if path else prefix
            table: Mapping[str, object] = module.__dict__
            kind = type(module)
            names = self._names | names_of_torch(kind)  # type: ignore[arg-type]
            if self._reads_all_of(kind):
                names = names | table.keys()
                yield _names_in(table, _TABLES | self._set_of(kind), path or "the model")
            for key in sorted(names & table.keys() - _TABLES):
                yield from self._held(table, key, f"{before}{key}", f"{before}{key}", self._set_of(kind))
            yield from self._class(kind, before, table, _DEPTH)
            if "forward" not in table:
                yield Entry(table, "forward", MISSING, f"{before}forward")
            elif "forward" not in names:
                yield from self._held(table, "forward", f"{before}forward", f"{before}forward", frozenset())
            for hook in hooks_of(module):
                yield from self._inside(hook, f"a hook of {path or 'the model'}", _DEPTH)

    def _reads_all_of(self, kind: type) -> bool:
        """Whether code reads all attributes of what is of a class."""
        return "" in self._loops or any(base.__qualname__ in self._loops for base in kind.__mro__)

    def _set_of(self, kind: type) -> frozenset[str]:
        """Return the attributes that code sets of what is of a class."""
        owners = {base.__qualname__ for base in kind.__mro__}
        return self._set_anywhere.union(*(stores.own for owner, stores in self._sets if owner in owners))

    def _held(
        self,
        table: Mapping[str, object],
        key: str,
        label: str,
        inner: str,
        stored: frozenset[str],
        depth: int = _DEPTH,
    ) -> Iterator[Entry]:
        value = table.get(key, MISSING)
        if value is MISSING or is_volatile(value):
            if isinstance(value, LOGGERS) and self._asks_for_levels and key not in stored:
                yield Entry(table, key, value, label)
                yield from levels_of(value)
            return
        check_repeats(value, label)
        found = Entry.of(table, key, label)
        plain = found.is_plain and not isinstance(getattr(value, "__dict__", None), dict)
        if found.is_plain or key not in stored:
            yield found
        if not plain:
            yield from self._inside(value, inner, depth - 1)

    def _inside(self, value: object, label: str, depth: int) -> Iterator[Entry]:
        if depth < 0 or id(value) in self._seen or isinstance(value, torch.Tensor):
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.nn.Module):
            self.others.append(value)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, GETTERS):
            self._named |= names_of_getter(value)
            for part in parts_of_getter(value):
                yield from self._inside(part, f"an argument of {label}", depth - 1)
        elif isinstance(value, LOGGERS):
            yield from levels_of(value) if self._asks_for_levels else ()
        elif isinstance(value, WRAPPERS):
            yield from self._inside(wrapped(value), label, depth)
        elif isinstance(value, ContextVar):
            yield from self._held(Variable(value), "value", f"{label}.value", label, frozenset(), depth)
        elif isinstance(value, types.ModuleType) and is_torch(value):
            yield from self._of_torch(value, label)
        elif isinstance(value, types.ModuleType) and is_standard(value):
            yield from self._of_standard(value, label)
        elif isinstance(value, WITH_PARTS):
            yield from self._items(value, label, depth)
        elif not is_torch(value) and not is_standard(value):
            yield from self._object(value, label, depth)

    def _items(self, value: object, label: str, depth: int) -> Iterator[Entry]:
        if isinstance(value, partial):
            yield Entry.of(Attributes(value), "keywords", f"the keywords of {label}")
        for part in parts_of(value):
            yield from self._inside(part, f"an item of {label}", depth - 1)
        if isinstance(getattr(value, "__dict__", None), dict):
            yield from self._object(value, label, depth)

    def _function(self, function: types.FunctionType) -> Iterator[Entry]:
        name, code = function.__qualname__, function.__code__
        if not is_model_code(code):
            for cell in function.__closure__ or ():
                yield from self._inside(Cells(cell).get(""), f"what {name} closes over", _DEPTH)
            return
        if code not in self.code.ran:
            return
        held = Attributes(function)
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            yield Entry.of(held, part, f"{part} of {name}")
        for key, value in defaults_of(function):
            if isinstance(value, dict | list | set):
                yield Entry.of({key: value}, key, f"{key}, a default of {name}")
            yield from self._inside(value, f"{key}, a default of {name}", _DEPTH)
        for key in sorted(self._names & function.__dict__.keys()):
            if not is_dunder(key):
                yield from self._held(
                    function.__dict__, key, f"{name}.{key}", f"{name}.{key}", self._set_anywhere
                )
        for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            cells = Cells(cell)
            inner = f"{type(cells.get(key)).__name__} in a closure"
            if not is_dunder(key):
                yield from self._held(cells, key, f"{key}, which {name} closes over", inner, self._set_cells)

    def _of_torch(self, module: types.ModuleType, label: str) -> Iterator[Entry]:
        """Yield what is read of a module of torch: its functions may be replaced."""
        for name in sorted(self._names & vars(module).keys()):
            value = vars(module)[name]
            if is_dunder(name) or not (callable(value) or isinstance(value, types.ModuleType)):
                continue
            yield Entry(vars(module), name, value, f"{label}.{name}")
            if isinstance(value, types.ModuleType):
                yield from self._inside(value, f"{label}.{name}", _DEPTH)
        for name in sorted(self._names & properties_of(type(module))):  # type: ignore[arg-type]
            held = Attributes(module)
            if isinstance(held.get(name), bool | int | float | str):
                yield Entry.of(held, name, f"{label}.{name}")

    def _of_standard(self, module: types.ModuleType, label: str) -> Iterator[Entry]:
        """Yield what is read of a module of Python's own: it may be replaced."""
        for name in sorted(self._names & vars(module).keys()):
            value = vars(module)[name]
            is_module = isinstance(value, types.ModuleType)
            if isinstance(value, LOGGERS) and self._asks_for_levels:
                yield from levels_of(value)
            if is_dunder(name) or not (callable(value) or is_plain(value) or is_module):
                continue
            yield Entry.of(vars(module), name, f"{label}.{name}")
            if is_module:
                yield from self._inside(value, f"{label}.{name}", _DEPTH)

    def _object(self, value: object, label: str, depth: int) -> Iterator[Entry]:
        kind = value if isinstance(value, type) else type(value)
        table: Mapping[str, object] | None = getattr(value, "__dict__", None)
        if isinstance(value, type) or not isinstance(table, dict):
            table = None
        names = self._names | names_in(value)
        stored = self._set_of(kind)
        if table is not None and not isinstance(value, types.ModuleType) and self._reads_all_of(kind):
            names = names | table.keys()
            yield _names_in(table, stored, label)
        for name in sorted(names & (table or {}).keys()):
            if table is not None and not is_dunder(name):
                where = Attributes(value) if isinstance(value, local) else table
                yield from self._held(where, name, f"{label}.{name}", f"{label}.{name}", stored, depth)
        if table is not None and not callable(value) and not isinstance(value, types.ModuleType | Enum):
            held = frozenset(table).union(*map(vars, kind.__mro__))
            absent = sorted(self._asked - held - stored)
            yield from (Entry(table, name, MISSING, f"{label}.{name}") for name in absent)
        if isinstance(value, types.ModuleType):
            return
        if not isinstance(value, type):
            yield Entry(Attributes(value), "__class__", kind, f"the class of {label}")
            for name in sorted(names & slots_of(kind)):
                yield from self._held(
                    Attributes(value), name, f"{label}.{name}", f"{label}.{name}", stored, depth
                )
        elif type(kind) is not type:
            yield from self._class(type(kind), f"{label}.", None, depth)
        yield from self._class(kind, f"{label}.", table, depth)

    def _class(
        self, kind: type, prefix: str, table: Mapping[str, object] | None, depth: int
    ) -> Iterator[Entry]:
        """Yield what is read of a class, and of an object that might get an attribute of its own instead."""
        stored = self._set_of(kind)
        for base in kind.__mro__:
            held = vars(base)
            if is_torch(base):
                yield from self._class_of_torch(base)
            if is_torch(base) or is_standard(base):
                continue
            for name in sorted(held.keys()):
                is_called = name in _CALLED or self._has_run(held[name])
                if not is_called and (name not in self._names or is_dunder(name)):
                    continue
                if (id(base), name) not in self._of_classes:
                    self._of_classes.add((id(base), name))
                    label = f"{base.__qualname__}.{name}"
                    yield from self._held(held, name, label, label, stored, depth)
                if table is not None and name not in table and name not in stored:
                    yield Entry(table, name, MISSING, f"{prefix}{name}")

    def _has_run(self, value: object) -> bool:
        return isinstance(value, types.FunctionType) and value.__code__ in self.code.ran

    def _class_of_torch(self, kind: type) -> Iterator[Entry]:
        """Yield the methods of one of torch's modules, and what of torch they call."""
        if not issubclass(kind, torch.nn.Module) or kind is torch.nn.Module:
            return
        for name, method in sorted(vars(kind).items()):
            if not isinstance(method, types.FunctionType) or is_dunder(name) or name in NOT_RUN:
                continue
            if (id(kind), name) in self._of_classes:
                continue
            self._of_classes.add((id(kind), name))
            yield Entry.of(vars(kind), name, f"{kind.__qualname__}.{name}")
            functions = vars(torch.nn.functional)
            for called in sorted(functions.keys() & method.__code__.co_names):
                if callable(functions[called]):
                    yield Entry(functions, called, functions[called], f"torch.nn.functional.{called}")


def _names_in(table: Mapping[str, object], without: frozenset[str], label: str) -> Entry:
    names = Names(table, without)
    return Entry(names, "names", names["names"], f"which names are in {label}")


_CALLED = frozenset(("forward", "__call__", "backward", "setup_context"))
_OF_OPTIMIZERS = frozenset(
    ("param_groups", "state", "defaults", "step", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
)


_TABLES = frozenset(
    ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_forward_hooks",
     "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs",
     "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called", "_state_dict_hooks",
     "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
     "_is_full_backward_hook", "_is_hf_initialized")
)  # fmt: skip
