"""The folder of one result: written aside and renamed, read back with every fault named.

report.html             the page            step.py                 the emitted program
report.json             the figures         graph.txt               the captured program
plan.txt                the decisions       memory_snapshot.pickle  for pytorch.org/memory_viz
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from peakfold.errors import CacheError, UsageError
from peakfold.files import place_of, write_whole
from peakfold.report.html import render_html
from peakfold.report.json import from_json, to_json
from peakfold.report.model import Report, Texts, Timeline
from peakfold.report.snapshot import snapshot_bytes

REPORT, PAGE, PLAN = "report.json", "report.html", "plan.txt"
SOURCE, GRAPH, SNAPSHOT = "step.py", "graph.txt", "memory_snapshot.pickle"


def write_folder(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write everything about a result; files of these names are replaced, others are left alone.

    Returns:
        The paths that were written.

    Raises:
        CacheError: the folder cannot be made or written.
    """
    return write_files(folder, contents(report))


def contents(report: Report) -> Mapping[str, bytes]:
    """Return the files of a result, by name."""
    planned = report.timelines.after or Timeline((), (), ())
    texts = {
        PLAN: report.texts.plan,
        SOURCE: report.texts.source,
        GRAPH: report.texts.graph,
        PAGE: render_html(report),
        REPORT: to_json(report),
    }
    return {SNAPSHOT: snapshot_bytes(planned), **{name: text.encode() for name, text in texts.items()}}


def read_folder(folder: Path) -> Report:
    """Read a result back.

    Raises:
        UsageError: there is no such folder, or it holds no report.
        CacheError: a file is corrupt, missing, or of another version.
    """
    if not folder.is_dir():
        raise UsageError(
            stage="report",
            what="there is no such folder",
            where=str(folder),
            expected="a folder that `peakfold optimize TARGET --out DIR` wrote",
        )
    if not (folder / REPORT).is_file():
        raise UsageError(
            stage="report",
            what="the folder holds no report",
            where=str(folder),
            expected=f"{REPORT}, as `peakfold optimize TARGET --out DIR` writes it",
            got=_listing(folder),
        )
    report = from_json(_text(folder / REPORT), str(folder / REPORT))
    texts = Texts(_text(folder / PLAN), _text(folder / SOURCE), _text(folder / GRAPH))
    return replace(report, texts=texts)


def write_files(folder: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write files into a folder: all aside first, then each renamed to its place.

    What is there and no file of its own (a pipe, a device) is written to as it stands; a link leads on.

    Raises:
        CacheError: the folder cannot be made or written; what was there before is still there, and no
            folder that was not.
    """
    data = {folder / name: content for name, content in files.items()}
    fresh = _missing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(data)
    except BaseException as error:
        _remove(fresh)
        if not isinstance(error, OSError):
            raise
        raise _unwritable(error, folder) from None
    return tuple(data)


def _missing(folder: Path) -> list[Path]:
    """Return a folder and those above it that are not there, the innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _remove(folders: Iterable[Path]) -> None:
    """Remove folders, but those with something in them."""
    for path in folders:
        with contextlib.suppress(OSError):
            path.rmdir()


def require_folder(folder: Path) -> None:
    """See that a folder is there or can be made, before anything long is done; nothing new is left behind.

    Raises:
        CacheError: it cannot be made.
    """
    fresh = _missing(folder)
    try:
        write_files(folder, {})
    finally:
        _remove(fresh)


def require_file(path: Path) -> None:
    """See that a file can be written, before anything long is done.

    Raises:
        CacheError: there is a folder, or the folder of the file cannot be made.
    """
    try:
        place = place_of(path)
    except OSError as error:
        raise _unwritable(error, path.parent) from None
    require_folder(place.parent)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _broken("a file is missing", path, "nothing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _broken("a file cannot be read", path, type(error).__name__) from None


def _broken(what: str, path: Path, got: str) -> CacheError:
    return CacheError(
        stage="report",
        what=what,
        where=str(path),
        expected="the text that `peakfold optimize TARGET --out DIR` wrote",
        got=got,
        hint="run it again to write the folder anew",
    )


def _unwritable(error: OSError, folder: Path) -> CacheError:
    return CacheError(
        stage="report",
        what="the results cannot be written",
        where=error.filename or str(folder),
        expected="a folder that can be written, and room for it",
        got=error.strerror or type(error).__name__,
        hint="choose another folder or make room; nothing that was there has been changed",
    )


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())[:5]
    return ", ".join(names) if names else "an empty folder"
