"""Python values that each forward pass changes: a captured program would leave them, so it is refused."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from peakfold.bridge.capture.bytecode import reads
from peakfold.bridge.capture.entries import is_scalar
from peakfold.bridge.capture.kept import kept_error
from peakfold.bridge.capture.python_state import Change, PythonState, is_same
from peakfold.bridge.capture.repeated import Remade, Repeated
from peakfold.bridge.capture.watch import Watch, line_that_names
from peakfold.errors import CaptureError


@contextmanager
def settled(model: torch.nn.Module, function: Callable[..., object]) -> Iterator["Settling"]:
    """Have what runs inside leave the Python values of a model, and of what it reads, as they were.

    Yields:
        What refuses a program that changes values each time.
    """
    before = PythonState.of(model, function)
    try:
        yield Settling(before)
    finally:
        before.forget()
        _undo(before)


@contextmanager
def as_before(model: torch.nn.Module, function: Callable[..., object]) -> Iterator[None]:
    """Have what runs inside leave the Python values of a model, and of what it reads, as they were."""
    before = PythonState.of(model, function)
    try:
        yield
    finally:
        before.forget()
        _undo(before)


def _undo(before: PythonState) -> None:
    now = before.later()
    for change in (*before.kept(now), *before.changes(now)):
        change.undo()


@dataclass(frozen=True, eq=False)
class Settling:
    """Tells what a program sets once from what it changes each time.

    Attributes:
        before: Python values before the program ran.
    """

    before: PythonState = field(default_factory=PythonState)

    def check(self, program: Repeated, ignored: Collection[int] = ()) -> frozenset[int]:
        """Refuse values that a second run changes again, and those of which it depends what is computed.

        What the first run alone makes, a cache, may come to be there: the program makes it in each step,
        where a second run has been seen to compute the very same of it, and nothing else.

        Args:
            program: what ran; it runs again only where something was changed.
            ignored: ids of the namespaces that torch's own hooks write to.

        Returns:
            Ids of the fake tensors that may be kept.

        Raises:
            CaptureError: names the value, and the line of the model's code that changes it.
        """
        first = self.before.later()
        changed = self.before.changes(first)
        kept = _unknown(self.before.kept(first), program, ignored)
        remade = program.remade()
        if not changed and not kept and not remade:
            return frozenset()
        same = program.is_repeated()
        second = first.later()
        for change in _unknown(first.kept(second), program, ignored):
            raise kept_error(change.words, _line(change, program, by_tensors=True))
        for change in first.changes(second):
            raise _each_time(_from_the_start(change, changed), _line(change, program))
        _check_once(changed, kept, program, same)
        _check_buffers(remade, program, same)
        return frozenset(id(tensor) for change in kept for tensor in change.tensors())


def _check_once(changed: list[Change], kept: list[Change], program: Repeated, same: bool) -> None:
    """Refuse what the first run alone changed, unless it is a cache."""
    marks = (one for one in changed if not one.is_filled and not (same and _is_read(one, program)))
    once = next(marks, None) or (None if same else next(iter((*kept, *changed)), None))
    if once is not None:
        raise _only_once(once, line_that_names(once.name, program.ran))
    for change in kept:
        if not all(map(program.is_lasting, change.tensors())):
            raise kept_error(change.words, line_that_names(change.name, program.ran))


def _check_buffers(remade: Iterable[Remade], program: Repeated, same: bool) -> None:
    """Refuse buffers that come to be there, unless they are caches that torch does not save."""
    for one in remade:
        if same and not one.is_saved and program.is_lasting(one.tensor):
            continue
        raise CaptureError(
            stage="capture",
            what=f"the forward pass makes the buffer {one.name}, or makes it in another form",
            where=line_that_names(one.name.rpartition(".")[2], program.ran),
            expected="buffers that keep their form, and caches of persistent=False that depend on no batch",
            got=f"a tensor of shape {tuple(one.tensor.shape)}",
            hint="run the model once on a batch of these shapes before it is captured",
        )


def _unknown(changes: Iterable[Change], program: Repeated, ignored: Collection[int]) -> list[Change]:
    return [
        change
        for change in changes
        if id(change.space.owner) not in ignored and any(map(program.is_unknown, change.tensors()))
    ]


def _is_read(change: Change, program: Repeated) -> bool:
    """Whether one number or text was set that the model's code reads too; others are for who runs it."""
    values = (kept.value for kept in (change.old, change.new) if kept is not None)
    return all(map(is_scalar, values)) and reads(change.name, program.ran)


def _line(change: Change, program: Repeated, *, by_tensors: bool = False) -> str:
    """Return the line that changes a value which each run changes."""
    space, name = change.space, change.name
    before = space.kept(name)

    def is_changed() -> bool:
        now = Change(space, name, before, space.kept(name))
        return bool(now.tensors()) if by_tensors else not is_same(now.old, now.new)

    watch = Watch(is_changed)
    with watch.running():
        program.again()
    return watch.line


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
    if change.tensors():
        return "a tensor"
    old, new = ("nothing" if kept is None else kept.words() for kept in (change.old, change.new))
    return f"{old} before, {new} after" if old != new else f"{old} before, others after"
