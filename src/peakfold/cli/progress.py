"""Says on stderr where a long run is: a bar where somebody watches, plain lines in a pipe."""

import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

QUIET_SECONDS = 5.0


class Reporter(AbstractContextManager["Reporter"]):
    """A `peakfold.report.progress.Progress` that prints.

    Args:
        console: where to; its ``is_terminal`` chooses bars or lines.
        prefix: put before each stage, e.g. the name of a model.
    """

    def __init__(self, console: Console, prefix: str = "") -> None:
        self.prefix = prefix
        self._console = console
        self._tasks: dict[str, TaskID] = {}
        self._lines = _Lines(console)
        self._bars: Progress | None = None

    def __enter__(self) -> Self:
        """Start to draw."""
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TimeElapsedColumn())
            note = TextColumn("{task.fields[note]}", style="dim", markup=False)
            self._bars = Progress(*columns, note, console=self._console, transient=True)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bars."""
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, stage: str, done: float, note: str = "") -> None:
        """Take note of where a stage is."""
        name = f"{self.prefix} {stage}".strip()
        if self._bars is None:
            self._lines.say(name, done, note)
            return
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=1.0, note=note)
        self._bars.update(self._tasks[name], completed=done, note=note)


class _Lines:
    """A line when a stage begins, and one every few seconds while it lasts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = self._note = ""
        self._said = 0.0

    def say(self, stage: str, done: float, note: str) -> None:
        now = time.monotonic()
        begins = stage != self._stage or (done == 0 and note != self._note)
        if done >= 1 or not (begins or now - self._said >= QUIET_SECONDS):
            return
        self._stage, self._note, self._said = stage, note, now
        share = "" if begins else f" {done:.0%}"
        self._console.print(f"{stage}{share}{': ' + note if note else ''}", markup=False, highlight=False)
