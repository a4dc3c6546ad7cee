"""The one hierarchy of errors.

Every message says the stage, the thing, what was expected, what was got and what to do next. Each
class owns the exit code of the command line.
"""

from dataclasses import dataclass
from typing import ClassVar

CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Characters that a terminal takes as commands, and how messages show them."""


@dataclass
class PeakfoldError(Exception):
    """A failure that the user can act on.

    Attributes:
        stage: the stage of the pipeline that failed, e.g. ``"capture"``.
        what: the thing that is wrong, one clause.
        where: the place, e.g. a file and line, a node, a row. Empty when there is none.
        expected: what would have been accepted.
        got: what was found.
        hint: what to do next.

    Example:
        >>> print(UsageError(stage="options", what="the budget cannot be read", got="'4 gigs'",
        ...                  expected="bytes, '4GiB', '40%' or 'fit'", hint="write --memory 4GiB"))
        options: the budget cannot be read
          expected: bytes, '4GiB', '40%' or 'fit'
          got: '4 gigs'
          next: write --memory 4GiB
    """

    stage: str
    what: str
    where: str = ""
    expected: str = ""
    got: str = ""
    hint: str = ""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        lines = [f"{self.stage}: {self.what}"]
        for label, text in (
            ("at", self.where),
            ("expected", self.expected),
            ("got", self.got),
            ("next", self.hint),
        ):
            if text:
                lines.append(f"  {label}: {text}")
        return "\n".join(lines).translate(CONTROLS)

    __hash__ = Exception.__hash__


class UsageError(PeakfoldError):
    """An argument, a target or an option is wrong."""

    exit_code = 2


class PlanError(PeakfoldError):
    """A plan cannot be read, or says something that is not legal for its graph."""

    exit_code = 2


class CacheError(PeakfoldError):
    """A cache or a saved file is corrupt, from another version, or cannot be written."""

    exit_code = 2


class InfeasibleError(PeakfoldError):
    """No program within the budget was found.

    Attributes:
        lowest_peak_bytes: the lowest peak that was found.
        lower_bound_bytes: a proven lower bound of the peak.
    """

    exit_code = 3
    lowest_peak_bytes: int = 0
    lower_bound_bytes: int = 0


class CaptureError(PeakfoldError):
    """A program cannot be captured as one graph, or no longer matches what was captured."""

    exit_code = 4


class NotEqualError(PeakfoldError):
    """The optimized program does not compute what the original does."""

    exit_code = 5
