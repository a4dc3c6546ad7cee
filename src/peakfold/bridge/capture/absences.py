"""Attributes that modules do not have, and that code asks for by name."""

import types
from collections.abc import Iterator
from functools import cache

import torch

from peakfold.bridge.capture.bytecode import attributes_of, texts_of
from peakfold.bridge.capture.entries import MISSING, Entry
from peakfold.bridge.capture.ran import ExecutedCode


def absences_read(model: torch.nn.Module, code: ExecutedCode) -> Iterator[Entry]:
    """Yield attributes that modules do not have and whose own code asks for, or tries."""
    asking = {ran: names for ran in code.ran if (names := _asked_in(ran, code))}
    if not asking:
        return
    methods = frozenset(found for module in model.modules() for found in _methods(module))
    everywhere = frozenset().union(*(texts for ran, texts in asking.items() if ran not in methods))
    for path, module in model.named_modules():
        own = (asking[found] for found in _methods(module) if found in asking)
        for name in sorted(frozenset().union(*own, everywhere if module is model else ())):
            if not hasattr(module, name):
                yield Entry(module.__dict__, name, MISSING, f"{path}.{name}" if path else name)


def names_asked_for(code: ExecutedCode) -> frozenset[str]:
    """Return the attributes that code asked for by name, or tries where it catches that there is none."""
    return frozenset(code.asked).union(*map(_tried_in, code.ran))


_ASKING = frozenset(("hasattr", "getattr"))
_CAUGHT = frozenset(("AttributeError", "Exception", "BaseException"))


def _asked_in(ran: types.CodeType, code: ExecutedCode) -> frozenset[str]:
    by_name = texts_of(ran) | code.asked if _ASKING & frozenset(ran.co_names) else frozenset()
    return by_name | _tried_in(ran)


def _tried_in(ran: types.CodeType) -> frozenset[str]:
    return attributes_of(ran) if _CAUGHT & frozenset(ran.co_names) else frozenset()


def _methods(module: torch.nn.Module) -> frozenset[types.CodeType]:
    return _methods_of(type(module))  # type: ignore[arg-type]


@cache
def _methods_of(kind: type) -> frozenset[types.CodeType]:
    held = (value for base in kind.__mro__ for value in vars(base).values())
    return frozenset(value.__code__ for value in held if isinstance(value, types.FunctionType))
