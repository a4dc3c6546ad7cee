"""Attributes that modules do not have, and that code asks for by name."""

import types
from collections.abc import Iterator
from functools import cache

import torch

from peakfold.bridge.capture.bytecode import texts_of
from peakfold.bridge.capture.entries import MISSING, Entry
from peakfold.bridge.capture.ran import ExecutedCode


def absences_read(model: torch.nn.Module, code: ExecutedCode) -> Iterator[Entry]:
    """Yield attributes that modules do not have and whose own code asks for by ``hasattr`` or ``getattr``."""
    asking = {ran: texts_of(ran) | code.asked for ran in code.ran if _ASKING & frozenset(ran.co_names)}
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


def _methods(module: torch.nn.Module) -> frozenset[types.CodeType]:
    return _methods_of(type(module))  # type: ignore[arg-type]


@cache
def _methods_of(kind: type) -> frozenset[types.CodeType]:
    held = (value for base in kind.__mro__ for value in vars(base).values())
    return frozenset(value.__code__ for value in held if isinstance(value, types.FunctionType))
