"""What the user's environment sets. The only file that reads it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peakfold.errors import UsageError


@dataclass(frozen=True, slots=True)
class Options:
    """Settings that hold for a whole process.

    Attributes:
        cache: directory of what is kept between runs: measured costs, captures (``PEAKFOLD_CACHE``).
        check: check graph, plan and schedule after every stage (``PEAKFOLD_CHECK``).
        dump: directory for what each stage makes; None for nothing (``PEAKFOLD_DUMP``).
        debug: how much is told, from 0, nothing, up (``PEAKFOLD_DEBUG``).
        compiler: of C++, once, for arenas; the usual names on the PATH when empty (``CXX``).
        cuda: folder of a CUDA toolkit, for arenas on CUDA; the usual ones when None (``CUDA_HOME``).
    """

    cache: Path
    check: bool = False
    dump: Path | None = None
    debug: int = 0
    compiler: str = ""
    cuda: Path | None = None


def from_environment(environment: Mapping[str, str] | None = None) -> Options:
    """Read the options.

    Args:
        environment: variables; those of the process when None.

    Raises:
        UsageError: a variable has a value that cannot be read.

    Example:
        >>> from_environment({"PEAKFOLD_CACHE": "/tmp/costs", "PEAKFOLD_CHECK": "1"}).check
        True
    """
    given = os.environ if environment is None else environment
    dump = given.get("PEAKFOLD_DUMP", "")
    return Options(
        cache=Path(given.get("PEAKFOLD_CACHE") or Path.home() / ".cache" / "peakfold").expanduser(),
        check=_flag("PEAKFOLD_CHECK", given.get("PEAKFOLD_CHECK", "")),
        dump=Path(dump).expanduser() if dump else None,
        debug=_level("PEAKFOLD_DEBUG", given.get("PEAKFOLD_DEBUG", "")),
        compiler=given.get("CXX", ""),
        cuda=Path(given["CUDA_HOME"]) if given.get("CUDA_HOME") else None,
    )


def quiet_profiler() -> None:
    """Keep torch's profiler from writing its log to the terminal, unless the user has set it."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def _flag(name: str, text: str) -> bool:
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    raise _unreadable(name, text, "0 or 1")


def _level(name: str, text: str) -> int:
    if not text:
        return 0
    if text.isdecimal():
        return int(text)
    raise _unreadable(name, text, "a number from 0")


def _unreadable(name: str, text: str, expected: str) -> UsageError:
    return UsageError(
        stage="options",
        what=f"the environment variable {name} cannot be read",
        expected=expected,
        got=repr(text),
        hint=f"set {name} to {expected}, or unset it",
    )
