"""Measured costs, kept between runs in a SQLite file.

Two processes may use one file at once, and one that is killed leaves it whole: every write is one
transaction on a write-ahead log. The first measurement of a key stays, so that all processes plan
with the same figures.

Nothing is lost silently. A file that is not a cache, or one of an older format, is moved aside; a
file that cannot be opened or written, a full disk included, is done without: costs then stay in
memory. Each such event is a `CacheError` in ``notices``, for the caller to show; none is raised.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from peakfold.errors import CacheError

FORMAT = 2
"""1: operators were measured with the faults of pages that the C library had given back."""
BUSY_SECONDS = 60.0
FILE_NAME = "costs.sqlite"

_TABLE = "CREATE TABLE cost (key TEXT PRIMARY KEY, seconds REAL NOT NULL, workspace INTEGER NOT NULL)"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured for one key.

    Attributes:
        seconds: of one run.
        workspace: bytes allocated beyond the outputs while it runs.
    """

    seconds: float
    workspace: int


_Work = Callable[[sqlite3.Connection], dict[str, Measurement]]


class CostCache:
    """Measurements by key, in a file and in memory.

    Attributes:
        path: the file; None where costs are kept in memory only.
        notices: what went wrong with the file, in order.

    Example:
        >>> costs = CostCache(None)
        >>> costs.put({"aten.mm.default(...)": Measurement(1e-3, 0)})
        >>> costs.get("aten.mm.default(...)").seconds
        0.001
    """

    def __init__(self, path: Path | None) -> None:
        """Open a file, or make one.

        Args:
            path: the file; its directory is made where it is missing. None for memory only.
        """
        self.path = path
        self.notices: list[CacheError] = []
        self._memory: dict[str, Measurement] = {}
        self._database = None if path is None else self._open(path)

    def get(self, key: str) -> Measurement | None:
        """Return what is known for a key, or None."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, Measurement]:
        """Return what is known, by key; unknown keys are absent."""
        wanted = dict.fromkeys(keys)
        missing = [key for key in wanted if key not in self._memory]
        if self._database is not None and missing:
            self._memory.update(self._try("read", lambda database: _read(database, missing)))
        return {key: self._memory[key] for key in wanted if key in self._memory}

    def put(self, found: Mapping[str, Measurement]) -> None:
        """Keep measurements, in one transaction; a key that is known already keeps its first."""
        if self._database is not None:
            self._memory.update(self._try("written", lambda database: _write(database, found)))
        for key, measurement in found.items():
            self._memory.setdefault(key, measurement)

    def close(self) -> None:
        """Close the file; what is in memory stays readable."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self, path: Path, *, thorough: bool = False) -> sqlite3.Connection | None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path):
                return self._connect(path, thorough)
        except (OSError, sqlite3.Error) as error:
            self.notices.append(_unusable("opened", path, error))
            return None

    def _connect(self, path: Path, thorough: bool) -> sqlite3.Connection | None:
        database = _database(path)
        try:
            version = _prepare(database)
            if thorough:
                _check(database)
        except sqlite3.DatabaseError as error:
            database.close()
            if isinstance(error, sqlite3.OperationalError):
                raise
            self._move_aside(path, "corrupt", f"{error}")
            return self._fresh(path)
        if version == FORMAT:
            return database
        database.close()
        if version > FORMAT:
            self.notices.append(_newer(path, version))
            return None
        self._move_aside(path, f"format-{version}", f"format {version}")
        return self._fresh(path)

    def _fresh(self, path: Path) -> sqlite3.Connection:
        database = _database(path)
        _prepare(database)
        return database

    def _move_aside(self, path: Path, why: str, got: str) -> None:
        aside = _unused(path, why)
        path.rename(aside)
        for suffix in ("-wal", "-shm"):
            log = path.with_name(path.name + suffix)
            if log.exists():
                log.rename(aside.with_name(aside.name + suffix))
        self.notices.append(
            CacheError(
                stage="cost cache",
                what="the file is not a cache of this format; it was moved aside and a new one begun",
                where=str(path),
                expected=f"a cost cache of format {FORMAT}",
                got=got,
                hint=f"costs are measured again; the old file is {aside}",
            )
        )

    def _try(self, verb: str, work: _Work) -> dict[str, Measurement]:
        """Work on the file; where that fails, say so and go on without it, or with a new one."""
        assert self._database is not None
        assert self.path is not None
        try:
            return work(self._database)
        except sqlite3.OperationalError as error:
            self.notices.append(_unusable(verb, self.path, error))
            self.close()
            return {}
        except sqlite3.DatabaseError:
            self.close()
            self._database = self._open(self.path, thorough=True)
            return {} if self._database is None else work(self._database)


def _database(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _prepare(database: sqlite3.Connection) -> int:
    """Make the table where there is none, and return the format."""
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    tables = int(database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if version == 0 and tables == 0:
        with _transaction(database):
            database.execute(_TABLE)
            database.execute(f"PRAGMA user_version={FORMAT}")
        return FORMAT
    if version == FORMAT:
        database.execute("SELECT key, seconds, workspace FROM cost LIMIT 1").fetchone()
    return version


def _check(database: sqlite3.Connection) -> None:
    """Read all of the file, and raise where it is damaged."""
    found = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
    if found != "ok":
        raise sqlite3.DatabaseError(found)


def _read(database: sqlite3.Connection, keys: Iterable[str]) -> dict[str, Measurement]:
    found: dict[str, Measurement] = {}
    for key in keys:
        row = database.execute("SELECT seconds, workspace FROM cost WHERE key = ?", (key,)).fetchone()
        if row is not None:
            found[key] = Measurement(float(row[0]), int(row[1]))
    return found


def _write(database: sqlite3.Connection, found: Mapping[str, Measurement]) -> dict[str, Measurement]:
    """Insert what is new, and return what the file then holds for these keys."""
    rows = [(key, one.seconds, one.workspace) for key, one in found.items()]
    with _transaction(database):
        database.executemany("INSERT INTO cost VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING", rows)
    return _read(database, found)


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time open, judge and move a file."""
    handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _unused(path: Path, why: str) -> Path:
    candidate, count = path.with_name(f"{path.name}.{why}"), 1
    while candidate.exists():
        count += 1
        candidate = path.with_name(f"{path.name}.{why}-{count}")
    return candidate


def _unusable(verb: str, path: Path, error: Exception) -> CacheError:
    return CacheError(
        stage="cost cache",
        what=f"the file cannot be {verb}; costs are kept in memory for this run",
        where=str(path),
        expected="a file on a disk with space that this user may write",
        got=f"{error}",
        hint="make space or set PEAKFOLD_CACHE to another directory; else costs are measured each time",
    )


def _newer(path: Path, version: int) -> CacheError:
    return CacheError(
        stage="cost cache",
        what="the file was written by a newer peakfold; costs are kept in memory for this run",
        where=str(path),
        expected=f"a cost cache of format {FORMAT}",
        got=f"format {version}",
        hint="update peakfold, or set PEAKFOLD_CACHE to another directory",
    )
