"""Python values that each forward pass changes: a captured program would leave them, so it is refused."""

import dis
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from _typeshed import TraceFunction

from peakfold.bridge.capture.places import is_model_code, line_of
from peakfold.bridge.capture.python_state import Change, PythonState, is_same
from peakfold.bridge.capture.python_values import Kept
from peakfold.errors import CaptureError


@contextmanager
def settled(model: torch.nn.Module, function: Callable[..., object]) -> Iterator["Settling"]:
    """Have what runs inside leave the Python values of a model as they were, and no fake tensor elsewhere.

    Where it raises, all that was changed is put back.

    Yields:
        What refuses a program that changes values each time.
    """
    before = PythonState.of(model, function)
    try:
        yield Settling(before)
    except BaseException:
        _undo(before.changes(before.later()))
        raise
    finally:
        before.forget()
    found = before.changes(before.later())
    _undo(change for change in found if change.space.of_module or change.holds_fake)


@contextmanager
def as_before(model: torch.nn.Module, function: Callable[..., object]) -> Iterator[None]:
    """Have what runs inside leave the Python values of a model, and of what it reads, as they were."""
    before = PythonState.of(model, function)
    try:
        yield
    finally:
        before.forget()
        _undo(before.changes(before.later()))


def _undo(changes: Iterable[Change]) -> None:
    for change in changes:
        change.undo()


@dataclass(frozen=True, eq=False)
class Settling:
    """Tells what a program sets once from what it changes each time.

    Attributes:
        before: Python values before the program ran.
    """

    before: PythonState = field(default_factory=PythonState)

    def check(self, again: Callable[[], object], ran: Iterable[types.CodeType]) -> None:
        """Refuse values that a second run changes again, and numbers that were another before the first.

        What was not there before, a cache that the first run makes, may come to be there.

        Args:
            again: runs the program once more; it is called only where something was changed.
            ran: the model's code that ran.

        Raises:
            CaptureError: names the value, and the line of the model's code that changes it.
        """
        first = self.before.later()
        changed = self.before.changes(first)
        if not changed:
            return
        again()
        repeated = first.changes(first.later())
        if repeated:
            watch = _Watch(repeated[0])
            with watch.running():
                again()
            raise _each_time(_from_the_start(repeated[0], changed), watch.line)
        once = next((change for change in changed if not change.is_filled), None)
        if once is not None:
            raise _only_once(once, _line_that_names(once.name, ran))


def _from_the_start(change: Change, changed: Iterable[Change]) -> Change:
    """Return a change of a second run as the first run made it, if it did."""
    alike = (one for one in changed if one.space is change.space and one.name == change.name)
    return next(alike, change)


def _each_time(change: Change, line: str) -> CaptureError:
    return CaptureError(
        stage="capture",
        what=f"the forward pass changes {change.words}",
        where=line,
        expected="a forward pass that changes tensors only: a captured step runs no Python of it",
        got=f"{_words(change)}, by each run",
        hint="make it a buffer (register_buffer), return it beside the loss, or count outside of the model",
    )


def _only_once(change: Change, line: str) -> CaptureError:
    return CaptureError(
        stage="capture",
        what=f"the first forward pass changes {change.words}",
        where=line,
        expected="a forward pass that does the same each time",
        got=f"{_words(change)}, by the first run alone",
        hint="run the model once on a batch of these shapes before it is captured",
    )


def _words(change: Change) -> str:
    old, new = ("nothing" if kept is None else kept.words() for kept in (change.old, change.new))
    return f"{old} before, {new} after" if old != new else f"{old} before, others after"


def _line_that_names(name: str, ran: Iterable[types.CodeType]) -> str:
    """Return the first line of code that sets a name, else the first that reads it; empty for none."""
    found = [
        (not step.opname.startswith("STORE"), line_of(code, step.positions.lineno))
        for code in ran
        for step in dis.get_instructions(code)
        if step.argval == name and step.positions is not None and step.positions.lineno is not None
    ]
    return min(found, default=(True, ""), key=lambda row: row[0])[1]


@dataclass(eq=False)
class _Watch:
    """Finds the first line of the model's code after which a name holds something else.

    Attributes:
        change: of a value that the program changes each time it runs.
        line: file, line and text; empty while it has not been changed.
    """

    change: Change
    line: str = ""
    _place: tuple[types.CodeType, int] | None = None
    _before: Kept | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch each line that runs inside."""
        traced = sys.gettrace()
        self._before = self._now()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(traced)

    def _now(self) -> Kept | None:
        return self.change.space.kept(self.change.name)

    def _enter(self, frame: types.FrameType, event: str, arg: object) -> "TraceFunction | None":
        return self._step if is_model_code(frame.f_code) else None

    def _step(self, frame: types.FrameType, event: str, arg: object) -> "TraceFunction | None":
        if self.line:
            return None
        if self._place is not None and not is_same(self._before, self._now()):
            self.line = line_of(*self._place)
        now = frame.f_back if event == "return" else frame
        if now is not None and is_model_code(now.f_code):
            self._place = (now.f_code, now.f_lineno)
        return self._step
