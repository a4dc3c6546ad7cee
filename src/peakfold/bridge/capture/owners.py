"""Whose a value is: torch's, Python's own, or its user's."""

import sys
import types
import weakref
from contextvars import ContextVar
from threading import local


def is_dunder(name: str) -> bool:
    """Whether Python itself gives a name its meaning."""
    return name.startswith("__")


def root_of(value: object) -> str:
    """Return the name of the outermost package that a module is in, or a class or function comes from."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "")
    return name.partition(".")[0] if isinstance(name, str) else ""


def is_standard(value: object) -> bool:
    """Whether a module or class is Python's own."""
    return isinstance(value, types.ModuleType | type) and root_of(value) in sys.stdlib_module_names


def is_volatile(value: object) -> bool:
    """Whether an object changes with what runs around the program: loggers, locks, streams."""
    kind = type(value)
    return root_of(kind) in _VOLATILE and not isinstance(value, weakref.ref | ContextVar | local)


_VOLATILE = frozenset(
    ("logging", "threading", "_thread", "contextvars", "_contextvars", "_io", "io", "weakref")
)


def is_torch(value: object) -> bool:
    """Whether a module or class, or an object's class, is torch's own."""
    return root_of(value) == "torch"


def is_foreign(kind: type) -> bool:
    """Whether a class is torch's or Python's own."""
    return is_torch(kind) or is_standard(kind)
