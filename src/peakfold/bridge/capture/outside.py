"""What the model's code is and reads outside of its modules, in words that can be kept with a saved program.

Code by a digest of its instructions, globals and closed-over variables by what they hold. All is found
again from the functions that a model has: those of its classes, its attributes, and what they name.
"""

import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from peakfold.bridge.capture.bytecode import globals_of
from peakfold.bridge.capture.entries import MISSING, Entry
from peakfold.bridge.capture.insides import parts_of
from peakfold.bridge.capture.namespaces import Attributes, Cells
from peakfold.bridge.capture.owners import is_foreign, is_volatile
from peakfold.bridge.capture.value_texts import alike, state_of, text_of

Function = Callable[..., object]
Table = Mapping[str, object]

_MOST = 64
"""Items of a container beyond which it is not followed."""
_GLOBAL = "the global "


@dataclass(frozen=True, order=True)
class Outside:
    """Something that code was or read.

    Attributes:
        kind: ``code``, ``global``, ``closure``, ``class`` or ``variable`` of the environment.
        module: name of the Python module.
        file: its file, without folders; ``__main__`` is another module in each program.
        path: the function; of a global, names from the module on; of a closure, the function and the name.
        holds: what it was, one for each function of this name.
    """

    kind: str
    module: str
    file: str
    path: str
    holds: tuple[str, ...]

    @property
    def words(self) -> str:
        """What to call it."""
        if self.kind == "closure":
            function, _, name = self.path.rpartition(" ")
            return f"{name}, which {function} closes over,"
        before = {"global": _GLOBAL, "code": "the code of ", "variable": "the environment variable "}
        module = f"{self.module}." if self.module else ""
        return f"{before.get(self.kind, '')}{module}{self.path}"


def outside(
    model: torch.nn.Module,
    function: Function,
    ran: Mapping[types.CodeType, Table],
    entries: Iterable[Entry],
) -> tuple[Outside, ...]:
    """Return what a model's code is and read.

    Args:
        model: of the program.
        function: that was run on it.
        ran: the code that ran, each with its globals.
        entries: what it read.
    """
    known = frozenset((_module(table), code.co_qualname) for code, table in ran.items())
    functions = _functions(model, function, known)
    tables, classes = {_module(table): table for table in ran.values()}, _classes(model)
    read = (_as_read(entry, tables, classes) for entry in entries)
    return tuple(sorted({*_of_functions(functions), *(found for found in read if found is not None)}))


def differences(
    then: Iterable[Outside], model: torch.nn.Module, function: Function | None
) -> tuple[list[str], list[Entry]]:
    """Return in words what is otherwise now, and the entries that were found, which must stay what they are.

    What cannot be found from the model, the function and the modules that are loaded is not compared.

    Args:
        then: what was.
        model: in the place of the one that was.
        function: in the place of the one that was run on it; None where it is not at hand.
    """
    then = tuple(then)
    known = frozenset((one.module, one.path) for one in then if one.kind == "code")
    functions = _functions(model, function, known)
    now = {(one.kind, one.module, one.path): one for one in _of_functions(functions)}
    tables = {_module(found.__globals__): found.__globals__ for found in functions}
    classes = _classes(model)
    said: list[str] = []
    entries = [entry for found in functions for entry in (*_closed_over(found), *_own(found))]
    for one in then:
        if one.kind in ("code", "closure"):
            other = now.get((one.kind, one.module, one.path))
            holds = one.holds if other is None else other.holds
        else:
            entry = _found(one, tables, classes)
            holds = one.holds if entry is None else (text_of(entry.table.get(entry.key, MISSING)),)
            entries += [] if entry is None else [entry]
        if not alike(one.holds, holds):
            said.append(_changed(one, holds))
    return said, [one for entry in entries for one in (entry, *_of_module(entry))]


def _of_module(entry: Entry) -> Iterator[Entry]:
    """Yield what is in a module that is no part of the model, a criterion for one."""
    if not isinstance(entry.value, torch.nn.Module):
        return
    for module in entry.value.modules():
        for table in (module.__dict__, module._buffers, module._parameters):
            yield from (Entry.of(table, key, f"{entry.label}, its {key}") for key in sorted(state_of(table)))


def _changed(one: Outside, now: tuple[str, ...]) -> str:
    if one.kind == "code" or any(text.startswith("function ") for text in (*now, *one.holds)):
        return f"{one.words} was changed"
    return f"{one.words} is {', '.join(now)} instead of {', '.join(one.holds)}"


def _of_functions(functions: Iterable[types.FunctionType]) -> list[Outside]:
    held: dict[tuple[str, str, str, str], list[str]] = {}
    for found in functions:
        module, file = _module(found.__globals__), _file(found.__globals__)
        path = found.__code__.co_qualname
        held.setdefault(("code", module, file, path), []).append(text_of(found))
        for entry in _closed_over(found):
            text = text_of(entry.table.get(entry.key, MISSING))
            held.setdefault(("closure", module, file, f"{path} {entry.key}"), []).append(text)
    return [Outside(*key, tuple(texts)) for key, texts in held.items()]


def _closed_over(function: types.FunctionType) -> Iterator[Entry]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        if not name.startswith("__") and not is_volatile(Cells(cell).get(name)):
            yield Entry.of(Cells(cell), name, f"{name}, which {function.__qualname__} closes over")


def _own(function: types.FunctionType) -> Iterator[Entry]:
    """Yield what a function itself is."""
    for key in ("__code__", "__defaults__", "__kwdefaults__"):
        yield Entry.of(Attributes(function), key, f"{key} of {function.__qualname__}")


def _as_read(entry: Entry, tables: Mapping[str, Table], classes: Mapping[str, type]) -> Outside | None:
    """Return what an entry is that lies outside of the model's modules; None where it does not."""
    holds = (text_of(entry.value),)
    if entry.table is os.environ:
        return Outside("variable", "", "", entry.key, holds)
    path = entry.label.removeprefix(_GLOBAL)
    base = classes.get(path.removesuffix(f".{entry.key}"))
    if base is not None and path != base.__qualname__:
        return Outside("class", "", "", path, holds)
    for module, table in tables.items():
        rest = path.removeprefix(f"{module}.")
        owner, _, key = rest.rpartition(".")
        if rest != path and key == entry.key and _reached(table, owner) is entry.table:
            return Outside("global", module, _file(table), rest, holds)
    return None


def _found(one: Outside, tables: Mapping[str, Table], classes: Mapping[str, type]) -> Entry | None:
    """Return where something is now that was read; None where it, or its Python module, is not there yet."""
    if one.kind == "variable":
        return Entry.of(os.environ, one.path, one.words)
    owner, _, key = one.path.rpartition(".")
    if one.kind == "class":
        return Entry.of(vars(classes[owner]), key, one.words) if owner in classes else None
    table = tables.get(one.module) or _loaded(one)
    if table is None:
        return None
    held = _reached(table, owner)
    return None if held is None or key not in held else Entry.of(held, key, one.words)


def _loaded(one: Outside) -> Table | None:
    """Return the globals of a Python module that is loaded."""
    module = sys.modules.get(one.module)
    if module is None or (one.module == "__main__" and _file(vars(module)) != one.file):
        return None
    return vars(module)


def _classes(model: torch.nn.Module) -> dict[str, type]:
    """Return the classes of a model's modules, by name."""
    kinds = dict.fromkeys(type(module) for module in model.modules())
    bases = (base for kind in kinds for base in kind.__mro__ if not is_foreign(base))
    return {base.__qualname__: base for base in bases}


def _reached(table: Table, path: str) -> Table | None:
    """Return the attributes of what is at a path of names from a table; None where there are none."""
    held: object = table
    for name in path.split(".") if path else ():
        value = held.get(name, MISSING) if isinstance(held, Mapping) else MISSING
        held = getattr(value, "__dict__", None)
    return held if isinstance(held, Mapping) else None


def _module(table: Table) -> str:
    return str(table.get("__name__", ""))


def _file(table: Table) -> str:
    return os.path.basename(str(table.get("__file__", "")))


def _functions(
    model: torch.nn.Module, function: Function | None, known: frozenset[tuple[str, str]]
) -> list[types.FunctionType]:
    """Return the functions of known names that a model and a function lead to, always in the same order."""
    found: dict[int, types.FunctionType] = {}
    seen: dict[int, object] = {}
    waiting: list[object] = [function, *reversed(list(_held(model)))]
    while waiting:
        value = waiting.pop()
        if value is None or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, types.FunctionType):
            if (_module(value.__globals__), value.__code__.co_qualname) in known:
                found[id(value)] = value
                waiting += reversed(list(_named(value)))
            waiting.append(getattr(value, "__wrapped__", None))
        else:
            waiting += reversed(list(_inside(value)))
    return list(found.values())


def _held(model: torch.nn.Module) -> Iterator[object]:
    for module in model.modules():
        yield type(module)
        yield from (value for name, value in sorted(module.__dict__.items()) if name not in _TABLES)


_TABLES = frozenset(torch.nn.Module().__dict__)


def _named(function: types.FunctionType) -> Iterator[object]:
    """Yield what a function closes over, and the functions and classes that it names."""
    for cell in function.__closure__ or ():
        yield Cells(cell).get("")
    for name in sorted(globals_of(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, types.FunctionType | partial):
            yield value


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, type):
        if not is_foreign(value):
            yield from (
                _plain(held) for base in value.__mro__ if not is_foreign(base) for held in vars(base).values()
            )
    elif isinstance(value, types.MethodType | partial) or (
        isinstance(value, dict | list | tuple) and len(value) <= _MOST
    ):
        yield from parts_of(value)
    elif not is_foreign(type(value)):
        yield type(value)


def _plain(held: object) -> object:
    """Return the function of a static method, class method or property."""
    if isinstance(held, staticmethod | classmethod):
        return held.__func__
    return held.fget if isinstance(held, property) else held if isinstance(held, types.FunctionType) else None
