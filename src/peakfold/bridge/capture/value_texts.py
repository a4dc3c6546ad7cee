"""Values as texts that can be kept, and compared with what the values are in another process."""

import hashlib
import re
import sys
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from peakfold.bridge.capture.entries import MISSING, is_plain, is_scalar

_DEEPEST = 4
"""Containers in containers that are told apart by what is in them."""
_MOST = 64
"""Items of a container beyond which its kind alone is compared."""
_ELEMENTS = 1 << 20
"""Elements of a tensor or array beyond which its form alone is compared."""


def alike(then: tuple[str, ...], now: tuple[str, ...]) -> bool:
    """Whether texts are equal; instructions of another Python are not compared."""
    if then == now:
        return True
    same = {tag for text in (*then, *now) for tag in _TAG.findall(text)} <= {_PYTHON}
    return not same and [_CODE.sub("", text) for text in then] == [_CODE.sub("", text) for text in now]


_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_TAG = re.compile(r"function (\d+\.\d+) ")
_CODE = re.compile(r"function \d+\.\d+ \S+ [0-9a-f]{12}")


def state_of(table: Mapping[str, object]) -> list[str]:
    """Return the names of a module's table that hold plain values or tensors."""
    return [name for name, held in table.items() if is_plain(held) or isinstance(held, torch.Tensor)]


def text_of(value: object, depth: int = _DEEPEST) -> str:
    """Return a text that is another one where a value is another one.

    Example:
        >>> text_of(2.0), text_of({"a": (1, True)}), text_of(torch.nn.Linear)
        ('2.0', "{'a': (1, True)}", 'torch.nn.modules.linear.Linear')
    """
    if value is MISSING:
        return "gone"
    if isinstance(value, torch.Tensor | np.ndarray):
        return _array_text(value)
    if isinstance(value, Enum) or is_scalar(value):
        return repr(value)
    inside = partial(text_of, depth=depth - 1)
    if isinstance(value, dict | list | tuple | set | frozenset):
        return _container_text(value, inside) if depth and len(value) <= _MOST else _kind_text(value)
    if isinstance(value, types.FunctionType):
        defaults = (value.__defaults__, value.__kwdefaults__)
        said = f" with {', '.join(map(inside, defaults))}" if any(defaults) and depth else ""
        return f"{_code_text(value.__code__)}{said}"
    if isinstance(value, types.MethodType) and depth:
        return f"{inside(value.__func__)} of {inside(value.__self__)}"
    if isinstance(value, partial) and depth:
        return f"partial {inside((value.func, value.args, value.keywords))}"
    if isinstance(value, torch.nn.Module) and depth:
        return f"{_kind_text(value)} {_module_text(value, inside)}"
    return _kind_text(value)


def _kind_text(value: object) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    name = getattr(value, "__name__", "")
    return name if isinstance(value, types.BuiltinFunctionType) else _qualified(value)


def _container_text(value: object, inside: Callable[[object], str]) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{inside(key)}: {inside(held)}' for key, held in value.items())}}}"
    assert isinstance(value, list | tuple | set | frozenset)
    texts = list(map(inside, value))
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(texts))}}}"
    return f"[{', '.join(texts)}]" if isinstance(value, list) else f"({', '.join(texts)})"


def _module_text(root: torch.nn.Module, inside: Callable[[object], str]) -> str:
    rows = (
        f"{path}.{key}: {inside(table[key])}"
        for path, module in root.named_modules()
        for table in (module.__dict__, module._buffers, module._parameters)
        for key in sorted(state_of(table))
    )
    text = hashlib.sha256("\n".join(rows).encode()).hexdigest()[:12]
    return f"of digest {text}"


def _qualified(value: object) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _array_text(value: torch.Tensor | np.ndarray) -> str:
    form = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, torch.Tensor):
        if isinstance(value, FakeTensor) or value.is_meta or value.numel() > _ELEMENTS:
            return form
        content = bytes(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    elif value.size > _ELEMENTS or value.dtype.hasobject:
        return form
    else:
        content = value.tobytes()
    return f"{form} of digest {hashlib.sha256(content).hexdigest()[:12]}"


def _code_text(code: types.CodeType) -> str:
    return f"function {_PYTHON} {code.co_qualname} {_digest(code)[:12]}"


def _digest(code: types.CodeType) -> str:
    constants = [
        _digest(constant) if isinstance(constant, types.CodeType) else text_of(constant)
        for constant in code.co_consts
    ]
    facts = (code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars)
    return hashlib.sha256(repr(facts).encode()).hexdigest()
