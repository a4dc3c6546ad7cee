"""Ctrl-C, but not inside the compiler: an exception that passes through LLVM's callbacks ends the process.

Nor is it lost where Python drops exceptions, in destructors and callbacks of weak references.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

UNSAFE = ("numba", "llvmlite")
RETRY_SECONDS = 0.05


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first moment after Ctrl-C at which no code is being compiled.

    Handlers can be set in the main thread alone; in another one, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGALRM)}
    said, sys.unraisablehook = sys.unraisablehook, _again
    try:
        yield
    finally:
        sys.unraisablehook = said
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _compiles(frame):
        signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
        return
    raise KeyboardInterrupt


def _again(dropped: "UnraisableHookArgs") -> None:
    """Raise a dropped KeyboardInterrupt once more, a moment later; report what else is dropped."""
    if dropped.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
    else:
        sys.__unraisablehook__(dropped)


def _compiles(frame: FrameType | None) -> bool:
    """Whether a frame is called, however indirectly, by the compiler."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in UNSAFE:
            return True
        frame = frame.f_back
    return False
