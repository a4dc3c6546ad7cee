"""Ctrl-C at a moment at which the search can end well: between two of its parts, never in one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class CtrlC:
    """Whether the user has pressed Ctrl-C."""

    pressed: bool = False


@contextmanager
def postponed() -> Iterator[CtrlC]:
    """Take note of the first Ctrl-C inside; the second one does what it did before.

    Handlers can be set in the main thread alone; in another one, nothing is changed.
    """
    noted = CtrlC()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
