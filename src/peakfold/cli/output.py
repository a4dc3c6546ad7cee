"""Where results go: a folder, a JSON file or stdout, and tables on the other stream."""

import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from peakfold.report.folder import require_folder, write_files, write_folder
from peakfold.report.json import to_json
from peakfold.report.model import Estimate, Report

STDOUT = "-"


@dataclass(frozen=True)
class Output:
    """The streams and files of one command.

    Attributes:
        json: a file, ``"-"`` for stdout, or None.
        folder: of the whole result, or None.
    """

    json: str | None = None
    folder: Path | None = None

    @property
    def tables(self) -> Console:
        """The console of tables: stdout, unless that is for JSON."""
        return Console(stderr=self.json == STDOUT)

    @property
    def progress(self) -> Console:
        """The console of progress."""
        return Console(stderr=True)

    def check(self) -> None:
        """See that the folders can be made before anything long is done.

        Raises:
            CacheError: it cannot be made.
        """
        if self.folder is not None:
            require_folder(self.folder)
        if self.json is not None and self.json != STDOUT:
            require_folder(Path(self.json).parent)

    def alone(self) -> AbstractContextManager[object]:
        """While the user's code runs: what it prints goes to stderr where stdout is for JSON."""
        return redirect_stdout(sys.stderr) if self.json == STDOUT else nullcontext()

    def tell(self) -> None:
        """Say where the files are."""
        if self.folder is not None:
            self.tables.print(f"written to {self.folder}", markup=False, highlight=False, soft_wrap=True)

    def write(self, result: Report | Estimate) -> None:
        """Write what was asked for.

        Raises:
            CacheError: something cannot be written.
        """
        if self.folder is not None and isinstance(result, Report):
            write_folder(result, self.folder)
        if self.json is not None:
            self.write_json(to_json(result))

    def write_json(self, text: str) -> None:
        """Write the text of a result where JSON was asked for.

        Raises:
            CacheError: it cannot be written.
        """
        if self.json == STDOUT:
            print(text, end="", flush=True)
        elif self.json is not None:
            path = Path(self.json)
            write_files(path.parent, {path.name: text.encode()})
