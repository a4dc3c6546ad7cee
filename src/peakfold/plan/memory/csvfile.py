"""Problems and solutions as CSV: ``id,lower,upper,size[,alignment][,offset]``, one buffer a row."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from peakfold.errors import UsageError
from peakfold.files import write_whole
from peakfold.plan.memory.problem import UNITS, Buffer, Problem, find_fault

REQUIRED = ("id", "lower", "upper", "size")
OPTIONAL = ("alignment", "offset")
FORMAT = "id,lower,upper,size[,alignment][,offset]"
TEXT = "save it as text in UTF-8, with commas between the columns"
HEADER = "name the columns in the first row"
LONG, SHOWN = 40, 60
AS_HEADER = "write one value for each column of the header"


def read_problem(path: str | Path) -> Problem:
    """Read a problem; any offsets in it are kept.

    Args:
        path: a CSV file.

    Returns:
        The problem, its buffers in the order of the rows.

    Raises:
        UsageError: the file cannot be read or is no problem; says the row and the column.
    """
    return _read(path, "problem")


def _read(path: str | Path, kind: str) -> Problem:
    lines = _lines(path, kind)
    if not lines:
        expected = f"a header, {FORMAT}, and a buffer a row"
        raise _wrong(f"the {kind} is empty", f"{path}, row 1", expected, "no rows", "write one buffer a row")
    header, *rows = lines
    columns = _columns(path, header)
    buffers = [_buffer(path, line, row, columns, len(header[1])) for line, row in rows]
    fault = find_fault(buffers)
    if fault is None:
        return Problem(tuple(buffers))
    row = (
        f"row {rows[fault.index][0]}, column {fault.column}" if buffers else f"row {header[0]}, the last one"
    )
    where = f"{path}, {row}"
    what = fault.what if buffers else f"the {kind} is empty"
    raise _wrong(what, where, fault.expected, fault.got, fault.hint)


def read_solution(path: str | Path) -> Problem:
    """Read a solution: a problem with an offset in every row.

    Raises:
        UsageError: as for a problem, or a row has no offset.
    """
    solution = _read(path, "solution")
    for buffer in solution.buffers:
        if buffer.offset is None:
            where = f"{path}, {buffer.named}, column offset"
            hint = f"make one with peakfold plan {path} -o SOLUTION.csv"
            raise _wrong("the solution has no offset here", where, "an offset in every row", "none", hint)
    return solution


def write_solution(path: str | Path, problem: Problem, offsets: Iterable[int]) -> None:
    """Write a solution: written aside, then renamed, so that a file is whole or as it was.

    Raises:
        UsageError: when the file cannot be written.
    """
    try:
        write_whole({Path(path): solution_text(problem, offsets).encode()})
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(
    path: str | Path,
    error: OSError,
    what: str = "the solution cannot be written",
    expected: str = "a CSV file",
) -> UsageError:
    """Return the error of a file that cannot be written: a solution, or what goes beside it."""
    got, hint = error.strerror or str(error), "name a file in a folder that exists and can be written"
    return _wrong(what, str(path), expected, got, hint)


def solution_text(problem: Problem, offsets: Iterable[int]) -> str:
    """Return a solution as CSV: the problem's columns, and the offsets."""
    aligned = any(buffer.alignment != 1 for buffer in problem.buffers)
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*REQUIRED, *(["alignment"] if aligned else []), "offset"])
    for b, offset in zip(problem.buffers, offsets, strict=True):
        extra = [b.alignment] if aligned else []
        writer.writerow([b.id, b.lower, b.upper, b.size, *extra, int(offset)])
    return file.getvalue()


def _lines(path: str | Path, kind: str) -> list[tuple[int, list[str]]]:
    """The rows that are not blank, with their line numbers."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        got = error.strerror or str(error)
        hint = "name a file that exists and can be read"
        raise _wrong(f"the {kind} cannot be read", str(path), "a CSV file", got, hint) from error
    except UnicodeDecodeError as error:
        row = error.object.count(b"\n", 0, error.start) + 1
        raise _wrong("this is not CSV", f"{path}, row {row}", FORMAT, str(error), TEXT) from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise _wrong("this is not CSV", f"{path}, row {reader.line_num}", FORMAT, str(error), TEXT) from error


def _columns(path: str | Path, header: tuple[int, list[str]]) -> dict[str, int]:
    names = [name.strip().lower() for name in header[1]]
    where = f"{path}, row {header[0]}"
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise _wrong(f"no column {', '.join(missing)}", where, FORMAT, ",".join(header[1]), HEADER)
    known = (*REQUIRED, *OPTIONAL)
    for place, name in enumerate(names):
        if name in known and name in names[:place]:
            raise _wrong(f"the column {name} is there twice", where, FORMAT, ",".join(header[1]), HEADER)
    return {name: names.index(name) for name in known if name in names}


def _buffer(path: str | Path, line: int, row: list[str], columns: dict[str, int], width: int) -> Buffer:
    where = f"{path}, row {line}"
    if max(columns.values()) >= len(row):
        short = next(name for name, place in columns.items() if place >= len(row))
        raise _wrong("the row is short", f"{where}, column {short}", FORMAT, ",".join(row), AS_HEADER)
    if any(cell.strip() for cell in row[width:]):
        expected = f"{width} columns, as the header has"
        raise _wrong("the row is long", where, expected, ",".join(row), AS_HEADER)
    cells = {name: row[place].strip() for name, place in columns.items()}
    if not cells["id"]:
        raise _wrong("the id is missing", f"{where}, column id", "a name", "nothing", "name the buffer")
    lower, upper, size = (_number(cells[name], where, name) for name in REQUIRED[1:])
    alignment, offset = (_number(cells[name], where, name) if cells.get(name) else None for name in OPTIONAL)
    return Buffer(cells["id"], lower, upper, size, 1 if alignment is None else alignment, offset, line)


def _number(text: str, where: str, column: str) -> int:
    digits = text.removeprefix("-")
    is_whole = digits.isascii() and digits.isdigit()
    if is_whole and len(digits.lstrip("0")) < LONG:
        return int(text[: -len(digits)] + (digits.lstrip("0") or "0"))
    expected, where = "a whole number within 2**62", f"{where}, column {column}"
    if is_whole:
        raise _wrong(f"the {column} overflows", where, expected, _shown(text), UNITS)
    hint = "write digits alone, such as 4096"
    raise _wrong("this is not a whole number", where, expected, _shown(text), hint)


def _shown(text: str) -> str:
    return text[:SHOWN] + ".." * (len(text) > SHOWN) or "nothing"


def _wrong(what: str, where: str, expected: str, got: str, hint: str) -> UsageError:
    return UsageError(stage="memory", what=what, where=where, expected=expected, got=got, hint=hint)
