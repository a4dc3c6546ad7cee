"""What is to be placed: buffers with half-open lifetimes, sizes and alignments."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Literal

from peakfold.errors import PlanError

LARGEST = 2**62
"""Times, sizes, and the sum of all sizes with their alignments stay below this."""

UNITS = "write all sizes, or all times, in larger units"
ALIGN = "write the next power of two, such as 64, or leave it out for 1"

NUMBERS = ("lower", "upper", "size", "alignment", "offset")
Status = Literal["optimal", "fits", "improvable", "infeasible", "not found"]


@dataclass(frozen=True)
class Buffer:
    """One buffer.

    Whole numbers of NumPy are kept as Python's, which do not overflow.

    Attributes:
        id: its name, unique in a problem.
        lower: the first time at which it is live.
        upper: one after the last such time.
        size: bytes.
        alignment: bytes, a power of two; its offset is a multiple.
        offset: its place in the arena, in a solution.
        row: of the file that it was read from, for errors.

    Example:
        >>> Buffer("b0", lower=0, upper=3, size=4096, alignment=64).offset is None
        True
    """

    id: str
    lower: int
    upper: int
    size: int
    alignment: int = 1
    offset: int | None = None
    row: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for column in NUMBERS:
            number: object = getattr(self, column)
            if type(number) is not int and (whole := as_int(number)) is not None:
                object.__setattr__(self, column, whole)

    @property
    def named(self) -> str:
        """What errors call it."""
        name = self.id if self.id.isprintable() else ascii(self.id)
        return f"buffer {name}" if self.row is None else f"buffer {name}, row {self.row}"


@dataclass(frozen=True)
class Fault:
    """Why buffers are no problem: the buffer, the column, what is wrong, what to do."""

    index: int
    column: str
    what: str
    expected: str
    got: str
    hint: str


@dataclass(frozen=True)
class Problem:
    """Buffers to be placed in one arena.

    Raises:
        PlanError: when it is empty or a buffer is not legal.

    Example:
        >>> Problem((Buffer("x", 0, 2, 8), Buffer("y", 1, 3, 8))).buffers[1].id
        'y'
    """

    buffers: tuple[Buffer, ...]

    def __post_init__(self) -> None:
        fault = find_fault(self.buffers)
        if fault is not None:
            raise PlanError(
                stage="memory",
                what=fault.what,
                where=f"buffer {fault.index}, {fault.column}" if self.buffers else "",
                expected=fault.expected,
                got=fault.got,
                hint=fault.hint,
            )

    def placed(self, offsets: Sequence[int]) -> "Problem":
        """The same buffers with these offsets.

        Raises:
            PlanError: there are more or fewer offsets than buffers, or one is no legal offset.
        """
        if len(offsets) != len(self.buffers):
            raise PlanError(
                stage="memory",
                what="the offsets are for another problem",
                expected=f"an offset for each of {len(self.buffers)} buffers",
                got=f"{len(offsets)} offsets",
                hint="take the offsets that plan returned for this problem",
            )
        return Problem(tuple(replace(b, offset=o) for b, o in zip(self.buffers, offsets, strict=True)))


@dataclass(frozen=True)
class Placement:
    """Where every buffer lies.

    Attributes:
        offsets: bytes from the start of the arena, in the order of the problem's buffers.
        arena: bytes, the largest end of a buffer.
        lower_bound: bytes; no arena is smaller, proved.
        status: ``"optimal"``: no smaller arena exists; ``"fits"``: within the capacity;
            ``"improvable"``: no capacity was asked and a smaller arena may exist; ``"infeasible"``:
            proved that nothing fits the capacity; ``"not found"``: nothing was found that fits it.
        seconds: the time that planning took, compilation apart.
    """

    offsets: tuple[int, ...]
    arena: int
    lower_bound: int
    status: Status
    seconds: float

    @property
    def fits(self) -> bool:
        """Whether the capacity, if any, is kept."""
        return self.status in ("optimal", "fits", "improvable")

    @property
    def gap(self) -> float:
        """How far the arena is above the bound, as a fraction."""
        return self.arena / self.lower_bound - 1.0


def find_fault(buffers: Sequence[Buffer]) -> Fault | None:
    """The first thing that is wrong with some buffers, or None."""
    if not buffers:
        return Fault(0, "", "the problem is empty", "at least one buffer", "none", "write one buffer a row")
    seen: dict[str, int] = {}
    total = 0
    for index, buffer in enumerate(buffers):
        fault = _own_fault(index, buffer)
        if fault is not None:
            return fault
        if buffer.id in seen:
            first = buffers[seen[buffer.id]].row
            where = f"buffer {seen[buffer.id]}" if first is None else f"row {first}"
            what = f"the id {buffer.id!r} is used twice, first by {where}"
            return Fault(index, "id", what, "an id of its own", repr(buffer.id), "rename one of the two")
        seen[buffer.id] = index
        total += buffer.size + buffer.alignment - 1
        if total >= LARGEST:
            what, expected = "the sum of the sizes overflows", "a sum below 2**62"
            return Fault(index, "size", what, expected, str(total), UNITS)
    return None


def as_int(number: object) -> int | None:
    """Return an integer of Python or of NumPy as Python's, or None: truth values are none.

    Example:
        >>> import numpy as np
        >>> as_int(np.int8(7)), as_int(True), as_int(7.0)
        (7, None, None)
    """
    return int(number) if isinstance(number, Integral) and not isinstance(number, bool) else None


def _own_fault(index: int, b: Buffer) -> Fault | None:
    offset = 0 if b.offset is None else b.offset
    whole = (("lower", b.lower), ("upper", b.upper), ("size", b.size))
    for column, number in (*whole, ("alignment", b.alignment), ("offset", offset)):
        if type(number) is not int:
            what, hint = f"the {column} is not a whole number", "round it, sizes upwards"
            return Fault(index, column, what, "an int", repr(number), hint)
    for column, number in whole:
        if abs(number) >= LARGEST:
            return Fault(
                index, column, f"the {column} overflows", "a number within 2**62", str(number), UNITS
            )
    if b.size <= 0:
        what, hint = "the size is not positive", "leave out what takes no bytes"
        return Fault(index, "size", what, "bytes, 1 or more", str(b.size), hint)
    if b.lower >= b.upper:
        what, expected = "the lifetime is empty", f"an upper above the lower, {b.lower}"
        hint = "write as upper one after the last time at which it is live"
        return Fault(index, "upper", what, expected, str(b.upper), hint)
    if b.alignment >= LARGEST:
        what = "the alignment overflows"
        return Fault(index, "alignment", what, "a power of two below 2**62", str(b.alignment), ALIGN)
    if b.alignment <= 0 or b.alignment & (b.alignment - 1):
        what = "the alignment is not a power of two"
        return Fault(index, "alignment", what, "1, 2, 4, 8, ..", str(b.alignment), ALIGN)
    if b.offset is not None and not 0 <= b.offset < LARGEST:
        what, expected = "the offset is out of range", "0 or more, within 2**62"
        hint = "write bytes from the start of the arena, or leave it out to have it planned"
        return Fault(index, "offset", what, expected, str(b.offset), hint)
    return None
