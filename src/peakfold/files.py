"""Files that are whole or as they were: written aside, then renamed to their places."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write to, which takes the place of another one when all is well.

    Where a link is, the file that it leads to is replaced. What is no file of its own (a pipe, a device) is
    written to as it stands.

    Raises:
        OSError: a folder is there, or the file cannot be written; what was there before is still there.
    """
    place = place_of(path)
    if place.exists() and not place.is_file():
        with path.open("wb") as file:
            yield file
        return
    aside = place.with_name(f".{place.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        with aside.open("xb") as file:
            yield file
            _settle(file)
        os.replace(aside, place)
    finally:
        aside.unlink(missing_ok=True)


def write_whole(files: Mapping[Path, bytes]) -> None:
    """Write files: all aside first, then each renamed to its place.

    Raises:
        OSError: one of them cannot be written; what was there before is still there.
    """
    with ExitStack() as stack:
        for path, content in files.items():
            file = stack.enter_context(replacing(path))
            file.write(content)
            _settle(file)


def _settle(file: BinaryIO) -> None:
    """See that what was written is on the disk; pipes and devices have none."""
    file.flush()
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        os.fsync(file.fileno())


def place_of(path: Path) -> Path:
    """Return where a file is to be written: links are followed to their end.

    Raises:
        OSError: there is a folder, or the links lead in a circle.
    """
    place = Path(os.path.realpath(path)) if path.is_symlink() and not _leads_to_no_file(path) else path
    if place.is_symlink() and not place.exists():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return place


def is_stdout(path: str | Path) -> bool:
    """Whether a file is the standard output: ``-``, or what this process has as such."""
    if str(path) == "-":
        return True
    try:
        return os.path.samestat(os.stat(path), os.fstat(1))
    except OSError:
        return False


def _leads_to_no_file(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()
