"""From an exception to a message and an exit code; a traceback only where it is asked for."""

import errno
import os
import sys
import traceback

import typer

from peakfold.cli.interrupts import interruptible
from peakfold.errors import CacheError, PeakfoldError
from peakfold.options import from_environment

INTERNAL, INTERRUPTED = 1, 130


def guarded(app: typer.Typer, arguments: list[str] | None = None) -> int:
    """Run an app and return its exit code.

    Codes: 0 done, 1 a fault of peakfold, 2 usage, 3 infeasible, 4 capture, 5 not equal, 130 interrupted.
    """
    try:
        with interruptible():
            app(args=arguments, prog_name="peakfold")
    except SystemExit as ended:
        return _ended(ended.code)
    except PeakfoldError as error:
        return _said(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _ended(INTERRUPTED)
    except OSError as error:
        return (
            _said(_unwritten(error), CacheError.exit_code)
            if error.errno == errno.ENOSPC
            else _internal(error)
        )
    except Exception as error:
        return _internal(error)
    return 0


def _unwritten(error: OSError) -> str:
    found = CacheError(
        stage="output",
        what="the results cannot be written",
        expected="room for them",
        got=str(error.strerror),
        hint="make room, or write elsewhere",
    )
    return str(found)


def _ended(code: str | int | None) -> int:
    if code == INTERRUPTED:
        return _said("interrupted: nothing was written", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _said(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def _internal(error: Exception) -> int:
    if _wants_traceback():
        traceback.print_exception(error)
        return INTERNAL
    place = traceback.extract_tb(error.__traceback__)[-1]
    return _said(
        f"internal error: {type(error).__name__}: {error}\n"
        f"  at: {os.path.basename(place.filename)}:{place.lineno}\n"
        "  next: set PEAKFOLD_DEBUG=1 for the traceback, and report it",
        INTERNAL,
    )


def _wants_traceback() -> bool:
    try:
        return from_environment().debug > 0
    except PeakfoldError:
        return False
