"""Where in the user's program an operator runs: module, source line, phase."""

import linecache
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType

import numpy
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import peakfold
from peakfold.errors import CaptureError, PeakfoldError
from peakfold.ir.graph import Origin, Phase

_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = os.path.join(_STANDARD, "site-packages") + os.sep
_PEAKFOLD = os.path.dirname(peakfold.__file__) + os.sep
_WORKLOADS = os.path.join(_PEAKFOLD, "workloads") + os.sep
_NUMPY = os.path.dirname(numpy.__file__) + os.sep
_CAPTURE = os.path.dirname(__file__) + os.sep
_OTHERS = (os.path.dirname(torch.__file__) + os.sep, _PEAKFOLD, "<")


@cache
def is_model_code(code: CodeType) -> bool:
    """Whether code is the user's or a model library's: not Python's, torch's or peakfold's own.

    The named workloads count as a user's.
    """
    path = code.co_filename
    if path.startswith(_WORKLOADS):
        return True
    if path.startswith(_STANDARD) and not path.startswith(_INSTALLED):
        return False
    return not path.startswith(_OTHERS)


def _is_named(code: CodeType) -> bool:
    """Whether a line of code is told to the user; NumPy's are not theirs."""
    return is_model_code(code) and not code.co_filename.startswith(_NUMPY)


def _model_frame() -> FrameType | None:
    """Return the innermost frame of the model's code; what called the capture is none of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_named(frame.f_code):
        if frame.f_code.co_name in _ENTRIES and frame.f_code.co_filename.startswith(_CAPTURE):
            return None
        frame = frame.f_back
    return frame


_ENTRIES = ("capture_step", "capture_inference", "eager_memory")


def model_source() -> str:
    """Return ``file.py:41``, the innermost line of the model's code that runs now."""
    frame = _model_frame()
    return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def model_line() -> str:
    """Return file, line and text of the innermost line of the model's code that runs now."""
    frame = _model_frame()
    return "" if frame is None else line_of(frame.f_code, frame.f_lineno)


def line_of(code: CodeType, line: int) -> str:
    """Return file, line and text of a line of code."""
    return f"{code.co_filename}:{line}: {linecache.getline(code.co_filename, line).strip()}"


def data_dependent(what: str) -> CaptureError:
    """Return the error for Python that needs the values of tensors."""
    return CaptureError(
        stage="capture",
        what=what,
        where=model_line(),
        expected="control flow and shapes that depend on shapes and Python values only",
        hint="use torch.cond, torch.where or masks, or move this out of the captured function",
    )


@contextmanager
def users_errors(what: str) -> Iterator[None]:
    """Turn what the user's code raises into a CaptureError that names its line.

    Args:
        what: what was running, e.g. ``"the forward pass"``.
    """
    try:
        yield
    except PeakfoldError:
        raise
    except Exception as error:
        raise CaptureError(
            stage="capture",
            what=f"{what} fails",
            where=_raised_at(error),
            got=f"{type(error).__name__}: {error}",
            hint="run the step eagerly: if it works there, it needs the values of tensors somewhere",
        ) from error


def _raised_at(error: Exception) -> str:
    place, trace = "", error.__traceback__
    while trace is not None:
        if _is_named(trace.tb_frame.f_code):
            place = line_of(trace.tb_frame.f_code, trace.tb_lineno)
        trace = trace.tb_next
    return place


@dataclass
class Places:
    """Follows the program: which module runs, and which forward place a gradient belongs to."""

    paths: dict[int, str]
    phase: Phase = "forward"
    stack: list[str] = field(default_factory=list)
    forward: dict[int, Origin] = field(default_factory=dict)
    last: Origin = field(default_factory=Origin)
    thread: int = field(default_factory=threading.get_ident)

    def origin(self) -> Origin:
        """Return where the operator that runs now comes from."""
        if self.phase == "update":
            return Origin(phase="update")
        node = torch._C._current_autograd_node()
        if self.phase == "backward":
            return self._backward(node)
        origin = Origin(self.stack[-1] if self.stack else "", model_source())
        self.forward[torch.autograd._get_sequence_nr() - 1] = origin  # type: ignore[attr-defined]
        return origin

    def _backward(self, node: object) -> Origin:
        if node is None:
            return self.last
        place = self.forward.get(node._sequence_nr())  # type: ignore[attr-defined]
        if place is not None:
            self.last = Origin(place.module, place.source, "backward")
        return self.last

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the modules that run inside."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: torch.nn.Module, inputs: object) -> None:
        if threading.get_ident() != self.thread:
            return
        above = self.stack[-1] if self.stack else ""
        self.stack.append(self.paths.get(id(module), above))

    def _leave(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        if threading.get_ident() == self.thread:
            self.stack.pop()
