"""Emitted source to a function."""

import linecache
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import sha256
from inspect import unwrap
from typing import Protocol

import torch

from peakfold.bridge.runtime.offload import HostError
from peakfold.errors import CacheError

Program = Callable[[Mapping[str, torch.Tensor], Mapping[str, float]], tuple[torch.Tensor, ...]]
"""What an emitted file defines: tensors and numbers by input names, to outputs."""


EMITTED = "<peakfold"
"""How the file names of emitted sources begin."""

_uses: Counter[str] = Counter()
"""How many functions of each emitted file live."""


def load_source(source: str) -> Program:
    """Return the ``step`` function of an emitted file; tracebacks show its lines.

    Raises:
        CacheError: the text is not Python, fails, or defines no ``step``.

    Example:
        >>> load_source("def step(tensors, scalars): return (tensors['x'],)")({"x": 1}, {})
        (1,)
    """
    filename = f"{EMITTED} {sha256(source.encode()).hexdigest()[:12]}>"
    namespace: dict[str, object] = {"__name__": "peakfold_emitted"}
    try:
        exec(compile(source, filename, "exec"), namespace)
    except SyntaxError as error:
        raise _unusable(f"line {error.lineno}: {error.msg}") from error
    except Exception as error:
        raise _unusable(f"{type(error).__name__}: {error}") from error
    step = namespace.get("step")
    if not callable(step):
        raise _unusable("no function step")
    _uses[filename] += 1
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(step, _forget, filename)
    return step


def _forget(filename: str) -> None:
    """Let the lines of a source go with the last function that was made of it.

    Their name stays: this may run at any time, also while `linecache` goes through its names.
    """
    _uses[filename] -= 1
    if not _uses[filename]:
        del _uses[filename]
        linecache.cache[filename] = (0, None, [], filename)


def failing_line(error: BaseException) -> str:
    """Return the statement of an emitted file that an error comes from, or nothing.

    Example:
        >>> try:
        ...     load_source("def step(tensors, scalars): return 1 / 0  # of nothing")({}, {})
        ... except ZeroDivisionError as error:
        ...     failing_line(error)
        'def step(tensors, scalars): return 1 / 0'
    """
    line, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(EMITTED):
            line = linecache.getline(name, trace.tb_lineno)
        trace = trace.tb_next
    return line.split("  #")[0].strip()


class Told(Protocol):
    """What a program says to which way its branches and loops go; it may decide otherwise."""

    def holds(self, fork: int, value: object) -> bool:
        """Return which side of a branch runs."""

    def goes_on(self, fork: int, value: object) -> bool:
        """Return whether there is another pass of a loop."""

    def over(self, fork: int) -> None:
        """Note that a branch or loop is over."""


def tell(program: Program, told: Told) -> None:
    """Have a program say which way it goes; one whose file has no such functions says nothing."""
    names = getattr(unwrap(program), "__globals__", {})
    if "goes_on" in names:
        names.update(holds=told.holds, goes_on=told.goes_on, over=told.over)


def host_error(program: Program) -> type[HostError]:
    """Return the error of an emitted file that offloads; where it does not, one that is never raised."""
    found = getattr(program, "__globals__", {}).get("HostError", HostError)
    assert isinstance(found, type)
    return found


def _unusable(got: str) -> CacheError:
    return CacheError(
        stage="load",
        what="the source of a step cannot be used",
        expected="a file that peakfold emitted, with def step(tensors, scalars)",
        got=got,
        hint="optimize again",
    )
