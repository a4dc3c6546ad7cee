"""The line of the model's code that changes something, found by running the program once more."""

import dis
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import TraceFunction

from peakfold.bridge.capture.places import is_model_code, line_of


def line_that_names(name: str, ran: Iterable[types.CodeType]) -> str:
    """Return the first line that sets a name, else has it as a text, else reads it; empty for none."""
    found = [
        (_rank(step.opname), line_of(code, step.positions.lineno))
        for code in ran
        for step in dis.get_instructions(code)
        if step.argval == name and step.positions is not None and step.positions.lineno is not None
    ]
    return min(found, default=(0, ""), key=lambda row: row[0])[1]


def _rank(operation: str) -> int:
    return 0 if operation.startswith("STORE") else 1 if operation == "LOAD_CONST" else 2


@dataclass(eq=False)
class Watch:
    """Finds the first line of the model's code after which something is otherwise.

    Attributes:
        is_changed: whether it is otherwise now.
        line: file, line and text; empty while it has not been changed.
    """

    is_changed: Callable[[], bool]
    line: str = ""
    _place: tuple[types.CodeType, int] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch each line that runs inside."""
        traced = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(traced)

    def _enter(self, frame: types.FrameType, event: str, arg: object) -> "TraceFunction | None":
        return self._step if is_model_code(frame.f_code) else None

    def _step(self, frame: types.FrameType, event: str, arg: object) -> "TraceFunction | None":
        if self.line:
            return None
        if self._place is not None and self.is_changed():
            self.line = line_of(*self._place)
        now = frame.f_back if event == "return" else frame
        if now is not None and is_model_code(now.f_code):
            self._place = (now.f_code, now.f_lineno)
        return self._step
