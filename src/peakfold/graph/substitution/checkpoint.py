"""What is kept beside the output of a long run, so that an interrupted one goes on."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peakfold.errors import CacheError
from peakfold.files import write_whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Checkpoint:
    """A file that belongs to one request.

    Attributes:
        path: of the file; None to keep nothing.
        request: to whose run it belongs; a file of another request is not taken up.
    """

    path: Path | None
    request: "DataclassInstance"

    def load(self) -> Mapping[str, object]:
        """Return what was kept of an interrupted run of the same request; nothing if there was none.

        Raises:
            CacheError: the file cannot be read.
        """
        if self.path is None or not self.path.exists():
            return {}
        try:
            kept = json.loads(self.path.read_text())
            mine = kept["request"] == json.loads(json.dumps(self._named))
            return dict(kept["state"]) if mine else {}
        except (OSError, ValueError, KeyError, TypeError) as reason:
            raise self.broken(reason) from reason

    def broken(self, reason: Exception) -> CacheError:
        """Return the error of a file that says nothing sensible."""
        return CacheError(
            stage="rules",
            what="the interrupted run cannot be taken up",
            where=str(self.path),
            got=f"{type(reason).__name__}: {reason}",
            hint="delete the file to start anew",
        )

    def save(self, **state: object) -> None:
        """Keep the state of the run, in one step: an interruption leaves the old one or the new one.

        Raises:
            CacheError: the file cannot be written.
        """
        if self.path is None:
            return
        content = json.dumps({"request": self._named, "state": state}).encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole({self.path: content})
        except OSError as reason:
            raise CacheError(
                stage="rules",
                what="what an interrupted run would go on from cannot be written",
                where=str(self.path),
                expected="a folder that can be written, and room for it",
                got=reason.strerror or type(reason).__name__,
                hint="name another folder or make room; -o - keeps nothing",
            ) from reason

    def drop(self) -> None:
        """Forget the run, which has ended."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    @property
    def _named(self) -> dict[str, object]:
        return {"kind": type(self.request).__name__, **asdict(self.request)}
