"""What a report says of the arena that a program runs in."""

from collections.abc import Iterator
from dataclasses import dataclass

from peakfold.plan.memory.host import Move
from peakfold.plan.memory.layout import Layout
from peakfold.plan.memory.lifetimes import SCRATCH
from peakfold.plan.memory.pools import Replay, advice, compare
from peakfold.report.extents import extents


@dataclass(frozen=True)
class ArenaBlock:
    """One buffer in the arena. No two that overlap in bytes overlap in time.

    Attributes:
        name: of the tensor, or of the step whose workspace it is.
        kind: decides its colour.
        nbytes: its bytes.
        offset: from the start of the arena.
        start: first step during which it is there; a fraction where it comes within a step, after others
            that gave their bytes back there.
        end: first step during which it no longer is, as of ``start``.
    """

    name: str
    kind: str
    nbytes: int
    offset: int
    start: float
    end: float


@dataclass(frozen=True)
class PoolRow:
    """What the same allocations come to in another allocator; see `peakfold.plan.memory.pools.Replay`."""

    model: str
    reserved_bytes: int
    allocated_bytes: int
    fragmentation: float
    cached_bytes: int
    compaction_bytes: int
    saved_bytes: int


@dataclass(frozen=True)
class PoolPart:
    """One arena of the logical pool that a program has.

    Attributes:
        place: where it is: the device, or the host.
        nbytes: its size.
        transfers: copies into and out of it in a step.
    """

    place: str
    nbytes: int
    transfers: int = 0


@dataclass(frozen=True)
class Arena:
    """The arena of a program.

    Attributes:
        nbytes: its size.
        lower_bound_bytes: no arena is smaller, proved.
        budget_bytes: what it may have at most; None where that is free.
        kept_bytes: the part of it for results, which outlive the step.
        held_bytes: the part of it for the caller's own tensors: weights, buffers, optimizer state, the batch.
        host_bytes: size of the arena on the host, for what is offloaded.
        runs: the program runs in it; else it was planned from predicted allocations.
        requests: allocations of one step.
        served: those that the arena served; None where it was not run.
        ordinary: those that went to torch's allocator, since they were not as planned.
        unplanned: the first of these, in words.
        elsewhere: allocations of other threads during the step, by torch's allocator; None where not run.
        copies: tensors that were copied into or out of the arena.
        seconds: what planning the places took.
        advice: settings of PyTorch's allocator for the same program on CUDA.
        steps: names of the steps.
        blocks: every buffer, in order of their start.
        pools: the same allocations in other allocators.
        parts: the arenas, one a device and one on the host, that are one logical pool.
        moves: what goes from the device to the host and back in a step, in the order of the copies out.
    """

    nbytes: int
    lower_bound_bytes: int
    budget_bytes: int | None = None
    kept_bytes: int = 0
    held_bytes: int = 0
    host_bytes: int = 0
    runs: bool = False
    requests: int = 0
    served: int | None = None
    ordinary: int | None = None
    unplanned: tuple[str, ...] = ()
    elsewhere: int | None = None
    copies: int = 0
    seconds: float = 0.0
    advice: str = ""
    steps: tuple[str, ...] = ()
    blocks: tuple[ArenaBlock, ...] = ()
    pools: tuple[PoolRow, ...] = ()
    parts: tuple[PoolPart, ...] = ()
    moves: tuple[Move, ...] = ()

    @property
    def gap(self) -> float:
        """How far it is above the bound, as a fraction."""
        return self.nbytes / self.lower_bound_bytes - 1.0 if self.lower_bound_bytes else 0.0

    @property
    def pooled_bytes(self) -> int:
        """Bytes of the arenas on the device and on the host together."""
        return sum(part.nbytes for part in self.parts)


def arena_of(
    layout: Layout,
    *,
    budget: int | None = None,
    host_bytes: int = 0,
    moves: tuple[Move, ...] = (),
    device: str = "cpu",
    runs: bool = False,
) -> Arena:
    """Return what a report says of a layout.

    Example:
        >>> from peakfold.plan.memory.layout import lay_out
        >>> from peakfold.plan.memory.trace import Request, Trace
        >>> trace = Trace((Request(100, 0, 2, 0, "x", "activations", 1),), ("a", "b"), 3)
        >>> found = arena_of(lay_out(trace))
        >>> found.nbytes, found.blocks[0].end, found.pools[1].model
        (128, 2.0, 'caching')
    """
    return Arena(
        nbytes=layout.arena,
        lower_bound_bytes=layout.lower_bound,
        budget_bytes=budget,
        kept_bytes=layout.trace.kept_bytes,
        held_bytes=layout.held_room,
        host_bytes=host_bytes,
        runs=runs,
        requests=len(layout.trace.requests),
        seconds=layout.seconds,
        advice=advice(layout.trace),
        steps=layout.trace.steps,
        blocks=(*_whole(layout), *_blocks(layout)),
        pools=tuple(_row(found, layout) for found in compare(layout.trace)),
        parts=tuple(_parts(layout, device, host_bytes, 2 * len(moves))),
        moves=moves,
    )


def _parts(layout: Layout, device: str, host_bytes: int, transfers: int) -> Iterator[PoolPart]:
    yield PoolPart(device, layout.arena, transfers)
    if host_bytes:
        pinned = "host" if device.startswith("cpu") else "host, pinned"
        yield PoolPart(pinned, host_bytes, transfers)


def _blocks(layout: Layout) -> tuple[ArenaBlock, ...]:
    requests = layout.trace.requests
    during = extents(requests, len(layout.trace.steps))
    return tuple(
        ArenaBlock(request.name, request.kind, request.size, offset, start, end)
        for request, offset, (start, end) in zip(requests, layout.offsets, during, strict=True)
    )


def _whole(layout: Layout) -> Iterator[ArenaBlock]:
    """Yield what has its place over the whole program: the caller's own tensors, blocks of other threads."""
    last = float(max(len(layout.trace.steps), 1))
    for size, offset in zip(layout.trace.beside, layout.beside, strict=True):
        yield ArenaBlock("other threads", SCRATCH, size, offset, 0.0, last)
    for one in layout.held:
        yield ArenaBlock(one.name, one.kind, one.size, one.offset, 0.0, last)


def _row(found: Replay, layout: Layout) -> PoolRow:
    return PoolRow(
        found.model,
        found.reserved,
        found.allocated,
        round(found.fragmentation, 6),
        found.cached,
        found.compaction,
        found.reserved - (layout.arena - layout.held_room),
    )
