"""A stage: named, timed, and dumped where the environment asks for it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peakfold.report.folder import write_files
from peakfold.report.model import StageSeconds
from peakfold.report.progress import Progress, silent


class Stages:
    """The clock and the dump of one optimization.

    Example:
        >>> stages = Stages()
        >>> with stages("capture"):
        ...     pass
        >>> stages.seconds().capture >= 0
        True
    """

    def __init__(self, progress: Progress = silent, dump: Path | None = None) -> None:
        self.progress = progress
        self._dump = dump
        self._files = 0
        self._spent: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str, note: str = "") -> Iterator[None]:
        """Time a stage; a stage that is entered again adds up."""
        self.progress(name, 0.0, note)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - start
        self.progress(name, 1.0, note)

    def dump(self, name: str, text: str) -> None:
        """Write a numbered file where dumps are asked for; each is accepted by the command line.

        Raises:
            CacheError: it cannot be written.
        """
        if self._dump is None:
            return
        write_files(self._dump, {f"{self._files:02d}-{name}": text.encode()})
        self._files += 1

    def seconds(self) -> StageSeconds:
        """Return what each stage took, in wall seconds; None for those that did not run."""
        names = ("capture", "profile", "search", "codegen", "verify")
        return StageSeconds(**{name: self._spent.get(name) for name in names})
