"""What a benchmark finds: rows, and their JSON. The field names are an interface."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from peakfold.errors import CacheError

FORMAT = 1
EAGER, PEAKFOLD = "eager", "peakfold"


@dataclass(frozen=True)
class Row:
    """One variant of one workload; None where something was not, or not yet, measured.

    Attributes:
        workload: its name.
        variant: a peer's name, or ``"peakfold"``; empty where the workload as a whole failed.
        constraint: what peakfold was asked for: ``"memory 50%"``, ``"latency 1.10"`` (``"latency 1.10
            -2%"`` leaves room for the error of prediction, ``+2%`` takes more), ``"as checkpoint-2"`` (within
            its time), or ``"none"`` for the program without recomputation; empty for a peer.
        peak_bytes: measured in a run of its own.
        cpu_seconds: the least of several runs, interleaved with all other variants of the workload.
        memory_ratio, latency_ratio: to eager in the same run.
        predicted_peak_bytes: what the simulator says; in an arena, what was placed.
        predicted_latency_ratio: the same, corrected by what operators took in other programs that ran.
        uncorrected_latency_ratio: the costs of its operators alone, over those that eager runs.
        lower_bound_bytes: of the peak of every plan without splitting and offload, proven.
        search_seconds: wall seconds of the search.
        equal: eager's loss, parameters, buffers and optimizer state after two steps: within rounding.
        max_error: the largest error of any of these, relative to its scale; 0 where every bit is the same.
        error: why it failed; empty where it did not.
        allocator: ``"torch"``, or ``"arena"`` where it ran in one, whose bytes then count whole in the peak.
    """

    workload: str
    variant: str
    constraint: str = ""
    peak_bytes: int | None = None
    cpu_seconds: float | None = None
    memory_ratio: float | None = None
    latency_ratio: float | None = None
    predicted_peak_bytes: int | None = None
    predicted_latency_ratio: float | None = None
    uncorrected_latency_ratio: float | None = None
    lower_bound_bytes: int | None = None
    search_seconds: float | None = None
    equal: bool | None = None
    max_error: float | None = None
    error: str = ""
    allocator: str | None = None

    @property
    def name(self) -> str:
        """Variant and constraint, as tables show them.

        Example:
            >>> Row("bert", "peakfold", "memory 50%").name
            'peakfold memory 50%'
        """
        return f"{self.variant} {self.constraint}".strip()


@dataclass(frozen=True)
class Results:
    """Everything that one call of the benchmark found.

    Attributes:
        rows: in the order in which they were run.
        environment: versions, machine, threads.
        settings: what was asked for.
        complete: False where it was interrupted.
    """

    rows: tuple[Row, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    complete: bool = True

    def of(self, workload: str) -> tuple[Row, ...]:
        """Return the rows of a workload."""
        return tuple(row for row in self.rows if row.workload == workload)

    @property
    def workloads(self) -> tuple[str, ...]:
        """The names that have rows, in order."""
        return tuple(dict.fromkeys(row.workload for row in self.rows))


def row_to_dict(row: Row) -> dict[str, object]:
    """Return a row as JSON has it; numbers that JSON lacks (infinities) are strings."""
    return {name: _number(value) for name, value in asdict(row).items()}


def row_from_dict(found: Mapping[str, Any]) -> Row:
    """Read a row back; fields that it does not know are left out.

    Example:
        >>> row = Row("bert", "eager", peak_bytes=10, max_error=math.inf)
        >>> row_from_dict(row_to_dict(row)) == row
        True
    """
    known = {item.name for item in fields(Row)}
    given: dict[str, Any] = {
        name: math.inf if value == "inf" else value for name, value in found.items() if name in known
    }
    return Row(**given)


def _number(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def to_json(results: Results) -> str:
    """Return results as JSON text, one line a row."""
    head = {
        "format": FORMAT,
        "complete": results.complete,
        "environment": dict(results.environment),
        "settings": dict(results.settings),
    }
    lines = [f' "{name}": {json.dumps(value)},' for name, value in head.items()]
    rows = ",\n".join(f"  {json.dumps(row_to_dict(row), allow_nan=False)}" for row in results.rows)
    return "\n".join(["{", *lines, ' "rows": [', rows, " ]", "}", ""])


def from_json(text: str, where: str = "") -> Results:
    """Read results back.

    Args:
        text: what `to_json` wrote.
        where: the file, for messages.

    Raises:
        CacheError: the text is no such thing, or of another version.
    """
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise _unreadable(where, f"format {FORMAT}", f"format {found['format']}")
        rows = tuple(row_from_dict(row) for row in found["rows"])
        return Results(rows, found["environment"], found["settings"], bool(found["complete"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(where, "what `peakfold bench --json FILE` writes", type(error).__name__) from None


def _unreadable(where: str, expected: str, got: str) -> CacheError:
    return CacheError(
        stage="bench", what="the results cannot be read", where=where, expected=expected, got=got
    )


def ratio(part: float | None, whole: float | None) -> float | None:
    """Return a quotient, None where one is missing.

    Example:
        >>> ratio(1, 2), ratio(None, 2)
        (0.5, None)
    """
    return None if part is None or not whole else part / whole


def eager_of(rows: Sequence[Row]) -> Row | None:
    """Return the row of eager among those of one workload."""
    return next((row for row in rows if row.variant == EAGER), None)
