"""What a program asks of its allocator, in order: every output and every hidden workspace."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from peakfold.plan.memory.problem import Buffer, Problem

ALIGNMENT = 64
"""Bytes; what torch's allocator on the CPU keeps to."""

CUDA_LINE = 512
"""Bytes; what it keeps to on CUDA."""


@dataclass(frozen=True, slots=True)
class Request:
    """One allocation.

    Attributes:
        size: bytes, as they are asked for.
        born: when it is asked for.
        dies: when it is given back; None where it outlives the program.
        row: the step of the program that asks; -1 before the first.
        name: what is in it.
        kind: what that is, as reports colour it.
        until: the last step during which it is live; -1 where it outlives the program.
    """

    size: int
    born: int
    dies: int | None
    row: int = -1
    name: str = ""
    kind: str = "workspace"
    until: int = -1

    @property
    def room(self) -> int:
        """Bytes that it takes in an arena: whole lines of `ALIGNMENT`."""
        return aligned(self.size)


@dataclass(frozen=True)
class Ways:
    """In which order requests are made, where control flow decides it.

    Attributes:
        calls: the request of each allocation, by index; both sides of a branch stand one after the other.
        turns: of each branch or loop its number, and the allocations before its first section, before its
            second one, and before what follows it.
        least: bytes that some way needs at once.
    """

    calls: tuple[int, ...]
    turns: tuple[tuple[int, int, int, int], ...]
    least: int


@dataclass(frozen=True)
class Trace:
    """Every allocation of one run of a program, in order. Storages that are taken over are one request.

    Attributes:
        requests: by the time at which they are born.
        steps: names of the steps of the program.
        length: one after the last time.
        beside: sizes of blocks that other threads may have at any time meanwhile.
        ways: the order of the requests; None where they are made as they stand here.
    """

    requests: tuple[Request, ...]
    steps: tuple[str, ...] = ()
    length: int = 0
    beside: tuple[int, ...] = ()
    ways: Ways | None = None

    @property
    def beside_bytes(self) -> int:
        """Bytes for blocks of other threads."""
        return sum(aligned(size) for size in self.beside)

    @property
    def calls(self) -> tuple[int, ...]:
        """The request of each allocation, by index, in the order of the program."""
        return tuple(range(len(self.requests))) if self.ways is None else self.ways.calls

    @cached_property
    def passing(self) -> tuple[int, ...]:
        """Requests that die within the program, by index."""
        return tuple(i for i, request in enumerate(self.requests) if request.dies is not None)

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Requests that outlive the program, by index."""
        return tuple(i for i, request in enumerate(self.requests) if request.dies is None)

    @property
    def kept_bytes(self) -> int:
        """Bytes of what outlives the program."""
        return sum(self.requests[i].room for i in self.kept)

    @cached_property
    def lower_bound(self) -> int:
        """Bytes that no arena is smaller than: the most that lives at once, what is kept, other threads."""
        if self.ways is not None:
            return self.ways.least + self.beside_bytes
        live = most = 0
        for _, change in self._changes():
            live += change
            most = max(most, live)
        return most + self.beside_bytes + self.kept_bytes

    def problem(self) -> Problem | None:
        """Return what is to be placed of what passes, in the order of `passing`; None where nothing does.

        Example:
            >>> trace = Trace((Request(100, 0, 2), Request(4, 1, None)), length=3)
            >>> trace.problem().buffers, trace.kept_bytes
            ((Buffer(id='0', lower=0, upper=2, size=128, alignment=64, offset=None),), 64)
        """
        buffers = tuple(_buffer(i, self.requests[i]) for i in self.passing)
        return Problem(buffers) if buffers else None

    def _changes(self) -> list[tuple[int, int]]:
        """(time, change of live bytes) of what passes; what dies at a time goes before what is born."""
        return sorted(change for i in self.passing for change in _ends(self.requests[i]))


def in_lines(trace: Trace, device: str) -> Trace:
    """Return a trace with its requests as the allocator of a device takes them.

    On CUDA they are whole lines of `CUDA_LINE` bytes, as torch's own are there. Then so are all places: each
    begins where others end.

    Example:
        >>> trace = Trace((Request(100, 0, 2),))
        >>> [in_lines(trace, device).requests[0].size for device in ("cpu", "cuda:0")]
        [100, 512]
    """
    if not device.startswith("cuda"):
        return trace
    lines = (replace(one, size=-(-one.size // CUDA_LINE) * CUDA_LINE) for one in trace.requests)
    return replace(trace, requests=tuple(lines))


def aligned(size: int) -> int:
    """Return a size in whole lines of `ALIGNMENT` bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _buffer(index: int, request: Request) -> Buffer:
    assert request.dies is not None
    return Buffer(str(index), request.born, request.dies, request.room, ALIGNMENT)


def _ends(request: Request) -> Iterator[tuple[int, int]]:
    assert request.dies is not None
    yield request.born, request.room
    yield request.dies, -request.room
