"""Files that searches are saved to and gone on with, and how many processes search."""

import os
from dataclasses import dataclass
from pathlib import Path

from peakfold.errors import UsageError
from peakfold.ir.graph import Graph
from peakfold.plan.search.saved import Saved, read, text_of
from peakfold.report.folder import require_file, write_files

WORKERS = 2
"""Most processes of one search."""


@dataclass(frozen=True)
class Searches:
    """Where a search is read from and saved to.

    Attributes:
        resume: file of an earlier one; None for none.
        save: file for this one; None for none.
        graph: the program.
        key: of everything else that decides what plans come to.
    """

    resume: str | None
    save: str | None
    graph: Graph
    key: str

    def load(self) -> Saved | None:
        """Return the earlier search, and see that this one can be saved before it begins.

        Raises:
            UsageError: there is no such file.
            CacheError: it is damaged, or for another graph; or this one cannot be saved.
        """
        if self.save is not None:
            require_file(Path(self.save))
        if self.resume is None:
            return None
        path = Path(self.resume)
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                stage="search",
                what="the saved search cannot be read",
                where=self.resume,
                expected="a file that --save-search wrote",
                got=type(error).__name__,
            ) from None
        return read(text, self.graph, self.key, self.resume)

    def store(self, saved: Saved) -> None:
        """Save a search.

        Raises:
            CacheError: it cannot be written.
        """
        assert self.save is not None
        path = Path(self.save)
        write_files(path.parent, {path.name: text_of(saved, self.graph, self.key).encode()})


def side_by_side(simulated: bool) -> int:
    """Return how many processes plan states: one where operators are measured, which must run alone.

    Args:
        simulated: whether costs come from a description of a device.
    """
    if not simulated:
        return 1
    return min(WORKERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
