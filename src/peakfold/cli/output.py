"""Where results go: a folder, a JSON file or stdout, and tables on the other stream."""

import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from peakfold.errors import UsageError
from peakfold.files import is_stdout
from peakfold.report.folder import require_file, require_folder, write_files, write_folder
from peakfold.report.json import to_json
from peakfold.report.model import Estimate, Report


@dataclass(frozen=True)
class Output:
    """The streams and files of one command.

    Attributes:
        json: a file, ``"-"`` for stdout, or None.
        folder: of the whole result, or None.
        file: of what the command makes, or ``-`` for stdout, or None.
    """

    json: str | None = None
    folder: Path | None = None
    file: Path | None = None

    @property
    def tables(self) -> Console:
        """The console of tables: stdout, unless that is for JSON."""
        return Console(stderr=self._takes_stdout)

    @property
    def progress(self) -> Console:
        """The console of progress."""
        return Console(stderr=True)

    def check(self) -> None:
        """See that everything can be written before anything long is done.

        Raises:
            CacheError: a folder cannot be made, or is where a file is to be.
            UsageError: two things are to go to stdout.
        """
        if self.json is not None and self.file is not None and is_stdout(self.json) and is_stdout(self.file):
            raise UsageError(
                stage="output",
                what="two results are to go to the standard output",
                where="--output, --json",
                expected="one of them there",
                got=f"-o {self.file} --json {self.json}",
                hint="write one of them to a file",
            )
        if self.folder is not None:
            require_folder(self.folder)
        if self.json is not None and not is_stdout(self.json):
            require_file(Path(self.json))
        if self.file is not None and not is_stdout(self.file):
            require_file(self.file)

    def alone(self) -> AbstractContextManager[object]:
        """While the user's code runs: what it prints goes to stderr where stdout is for JSON."""
        return redirect_stdout(sys.stderr) if self._takes_stdout else nullcontext()

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
        if self.json is not None:
            _write(Path(self.json), text)

    def write_file(self, text: str) -> None:
        """Write what the command makes.

        Raises:
            CacheError: it cannot be written.
        """
        if self.file is not None:
            _write(self.file, text)

    @property
    def _takes_stdout(self) -> bool:
        return any(name is not None and is_stdout(name) for name in (self.json, self.file))


def _write(path: Path, text: str) -> None:
    if is_stdout(path):
        print(text, end="", flush=True)
    else:
        write_files(path.parent, {path.name: text.encode()})
