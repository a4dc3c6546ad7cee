"""What code reads, imports and sets, by its instructions."""

import dis
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import resolve_name
from itertools import pairwise


def globals_of(code: types.CodeType) -> frozenset[str]:
    """Return the names of the globals that code reads, by ``globals()`` too.

    Example:
        >>> sorted(globals_of((lambda: len(dis.cmp_op)).__code__))
        ['dis', 'len']
        >>> sorted(globals_of((lambda: globals()["scale"]).__code__))
        ['globals', 'scale']
    """
    found = _used(code, _LOADS)
    return found | texts_of(code) if "globals" in found else found


def texts_of(code: types.CodeType) -> frozenset[str]:
    """Return the constants of code that could be names, and those that ``attrgetter`` is given one in all."""
    texts = [text for text in code.co_consts if isinstance(text, str)]
    if "attrgetter" in code.co_names:
        texts = [part for text in texts for part in text.split(".")]
    return frozenset(filter(str.isidentifier, texts))


@cache
def _used(code: types.CodeType, operations: frozenset[str]) -> frozenset[str]:
    return frozenset(found.argval for found in dis.get_instructions(code) if found.opname in operations)


def attributes_of(code: types.CodeType) -> frozenset[str]:
    """Return the attributes that code reads by a name and a dot."""
    return _used(code, _READS)


_LOADS = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))
_READS = frozenset(("LOAD_ATTR", "LOAD_METHOD"))


def imports_of(
    code: types.CodeType, table: Mapping[str, object]
) -> Iterator[tuple[types.ModuleType, tuple[str, ...]]]:
    """Yield the modules that code imports as it runs, each with the names that it takes from it.

    Args:
        code: it has run.
        table: its globals.
    """
    steps = list(dis.get_instructions(code))
    for index, step in enumerate(steps):
        if step.opname != "IMPORT_NAME":
            continue
        level, taken = steps[index - 2].argval, steps[index - 1].argval
        package = table.get("__package__")
        dotted = "." * level + step.argval if isinstance(level, int) else step.argval
        if dotted.startswith(".") and not isinstance(package, str):
            continue
        name = resolve_name(dotted, package if isinstance(package, str) else None)
        module = sys.modules.get(name if taken else name.partition(".")[0])
        if module is not None:
            yield module, tuple(taken or ())


def reads(name: str, ran: Iterable[types.CodeType]) -> bool:
    """Whether code reads an attribute, global or outer variable of a name.

    Example:
        >>> def method(self, other):
        ...     self.last = other.size
        >>> [reads(name, [method.__code__]) for name in ("size", "last")]
        [True, False]
    """
    return any(name in _used(code, _READS) or name in texts_of(code) for code in ran)


_READS = frozenset(
    ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF",
     "LOAD_CLASSDEREF")
)  # fmt: skip


@cache
def loops_of(code: types.CodeType) -> frozenset[str]:
    """Return whose attributes code may read all of: the class that it is a method of, or ``""`` for any.

    Example:
        >>> class Own:
        ...     def names(self):
        ...         return sorted(self.__dict__)
        >>> def names(other):
        ...     return sorted(vars(other))
        >>> loops_of(Own.names.__code__), loops_of(names.__code__), loops_of(owner_of.__code__)
        (frozenset({'Own'}), frozenset({''}), frozenset())
    """
    if not _OF_ALL & frozenset(code.co_names):
        return frozenset()
    method = code.co_qualname.partition(".<locals>")[0]  # code inside of a method closes over its self
    is_inside = method != code.co_qualname and "self" in code.co_freevars
    owner = method.rpartition(".")[0] if is_inside else owner_of(code)
    first = "self" if is_inside else code.co_varnames[0] if code.co_argcount else ""
    found = set()
    for before, step in pairwise(dis.get_instructions(code)):
        if step.argval in _OF_ALL:
            found.add(owner if step.argval == "__dict__" and first and _loads(before, first) else "")
    return frozenset(found)


_OF_ALL = frozenset(("vars", "__dict__", "dir", "asdict", "astuple", "getmembers"))
"""Names by which code comes at all attributes of an object."""


@dataclass(frozen=True)
class Stores:
    """Names that code sets.

    Attributes:
        own: attributes of the object whose method the code is.
        attributes: those of other objects.
        cells: variables of the functions around.
        globals: variables of the module.
    """

    own: frozenset[str]
    attributes: frozenset[str]
    cells: frozenset[str]
    globals: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        """Every name."""
        return self.own | self.attributes | self.cells | self.globals


@cache
def stores_of(code: types.CodeType) -> Stores:
    """Return the names that code sets.

    Example:
        >>> def method(self, other):
        ...     self.last = other
        ...     other.count = 1
        >>> sorted(stores_of(method.__code__).attributes)
        ['count', 'last']
    """
    own: set[str] = set()
    others: set[str] = set()
    first = code.co_varnames[0] if code.co_argcount and owner_of(code) else None
    steps = list(dis.get_instructions(code))
    for before, step in pairwise(steps):
        if step.opname == "STORE_ATTR":
            (own if first is not None and _loads(before, first) else others).add(step.argval)
    cells = _used(code, frozenset(("STORE_DEREF",))) & frozenset(code.co_freevars)
    return Stores(frozenset(own), frozenset(others), cells, _used(code, frozenset(("STORE_GLOBAL",))))


def _loads(step: dis.Instruction, name: str) -> bool:
    """Whether an instruction puts a local variable on top of the stack."""
    last = step.argval[-1] if isinstance(step.argval, tuple) and step.argval else step.argval
    return step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and last == name


def owner_of(code: types.CodeType) -> str:
    """Return the qualified name of the class in which code is a method; empty where it is none.

    Example:
        >>> owner_of(Stores.all.fget.__code__), owner_of(stores_of.__wrapped__.__code__)
        ('Stores', '')
    """
    owner = code.co_qualname.rpartition(".")[0]
    return "" if owner.endswith("<locals>") else owner
