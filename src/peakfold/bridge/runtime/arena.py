"""Running a step in one arena: planned offsets, in program order.

An `Arena` is bytes and a layout for one program. While its step runs, requests of the calling thread
are served from it; see arena.cpp for how they are matched.
"""

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from peakfold.bridge.runtime.arena_cuda import require_tried
from peakfold.bridge.runtime.arena_native import Native, native
from peakfold.bridge.runtime.devices import current, kind_of
from peakfold.errors import UsageError
from peakfold.plan.memory.layout import Held, Layout
from peakfold.plan.memory.ways import FIRST, OVER, SECOND, Choices, turn

NAMED = 32
NUMBERS = 9
SIZES = 4096
"""Of blocks of other threads that are told apart at most."""

Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Use:
    """What one step asked of its arena.

    Attributes:
        requests: allocations of the step.
        served: those that the arena served.
        ordinary: those that went to torch's own allocator, because they were not as planned.
        ordinary_bytes: bytes of these.
        spares: new places for results of which the caller still held an earlier one.
        high_water: the highest byte of the arena that was used.
        named: the first requests that were not as planned, in words.
        elsewhere: allocations of other threads meanwhile that torch's own allocator served.
        elsewhere_bytes: bytes of these.
        beside: allocations of other threads that the arena served.
        copies: tensors that were copied into the arena before the step.
        copied_bytes: bytes of these.
    """

    requests: int = 0
    served: int = 0
    ordinary: int = 0
    ordinary_bytes: int = 0
    spares: int = 0
    high_water: int = 0
    named: tuple[str, ...] = ()
    elsewhere: int = 0
    elsewhere_bytes: int = 0
    beside: int = 0
    copies: int = 0
    copied_bytes: int = 0


class Memory:
    """A block of bytes that layouts share in turn. Tensors in it keep it alive.

    Raises:
        UsageError: there is no allocator for the device, or no room for the block.
    """

    def __init__(self, size: int, device: str = "cpu") -> None:
        self.size = size
        self.lock = threading.RLock()
        self._library = library = native(kind_of(device))
        with current(device):
            self.handle = library.memory(max(size, 1))
        if not self.handle:
            raise UsageError(
                stage="arena",
                what="there is no room for the arena",
                where=device,
                expected=f"{size} bytes",
                hint="free memory there, or allow a smaller arena",
            )
        self._finalizer = weakref.finalize(self, library.memory_release, self.handle)
        self._finalizer.atexit = False

    @property
    def address(self) -> int:
        """Of its first byte."""
        return int(self._library.memory_start(self.handle))


class Arena:
    """A layout in memory.

    Attributes:
        layout: where everything lies.
        memory: the bytes.
        use: what the last step asked for.
        poison: fill bytes with NaN when what was in them dies.

    Raises:
        UsageError: the allocator cannot be compiled.
    """

    def __init__(self, layout: Layout, memory: Memory | None = None, lift: int = 0) -> None:
        """Take the bytes, or those of a larger block, in which results lie higher by ``lift`` bytes."""
        self.layout = layout
        self.memory = memory or Memory(layout.arena, layout.device)
        self.use = Use()
        self.poison = False
        self._library = library = native(kind_of(layout.device))
        self._handle = _plan(library, layout, self.memory, lift)
        self._finalizer = weakref.finalize(self, library.plan_release, self._handle)
        self._finalizer.atexit = False

    def run(self, step: Callable[[], Results]) -> Results:
        """Run a step with its allocations in the arena."""
        library, stats = self._library, (ctypes.c_int64 * NUMBERS)()
        with self.memory.lock, current(self.layout.device):
            library.begin(self._handle, self.poison)
            try:
                return step()
            finally:
                library.end(stats)
                self.use = self._use(library, list(stats))

    def _use(self, library: Native, stats: list[int]) -> Use:
        named = self._named(library) if stats[2] else ()
        requests, served, ordinary, ordinary_bytes, spares, high_water, *others = stats
        elsewhere, elsewhere_bytes, beside = others
        ours = (requests, served, ordinary, ordinary_bytes, spares, high_water)
        return Use(*ours, named, elsewhere, elsewhere_bytes, beside)

    def _named(self, library: Native) -> tuple[str, ...]:
        pairs = (ctypes.c_int64 * (2 * NAMED))()
        count = int(library.unmatched(self._handle, pairs, NAMED))
        return tuple(_words(self.layout, pairs[2 * i], pairs[2 * i + 1]) for i in range(count))


def require_works(device: str) -> None:
    """Refuse a device on which there can be no arena. On CUDA a small program is run there first.

    Raises:
        UsageError: says why.
    """
    library = native(kind_of(device))
    if kind_of(device) == "cuda":
        require_tried(library.path, device, f"{torch.cuda.get_device_name(device)} {torch.version.cuda}")


class Ways:
    """Which way a program goes, told by it while it runs in an arena."""

    def __init__(self, layout: Layout) -> None:
        self._device = kind_of(layout.device)
        ways = layout.trace.ways
        self._turns = {} if ways is None else {fork: after for fork, *after in ways.turns}

    def holds(self, fork: int, value: object) -> bool:
        """Say which side of a branch runs: its requests come next."""
        return self.goes_on(fork, value)

    def goes_on(self, fork: int, value: object) -> bool:
        """Say whether there is another pass of a loop: its requests come next."""
        first, second, _ = self._turns[fork]
        way = bool(value)
        native(self._device).turn(first if way else second)
        return way

    def over(self, fork: int) -> None:
        """Say that a branch or loop is over."""
        *_, after = self._turns[fork]
        native(self._device).turn(after)


def places(memory: Memory, held: Sequence[Held]) -> list[torch.Tensor]:
    """Return the bytes of places for tensors of the caller, which nothing else gets while they live."""
    if not held:
        return []
    library, count = native(), len(held)
    sizes = (ctypes.c_int64 * count)(*(one.size for one in held))
    offsets = (ctypes.c_int64 * count)(*(one.offset for one in held))
    plan = library.plan(memory.handle, count, sizes, offsets, (ctypes.c_int8 * count)())
    stats = (ctypes.c_int64 * NUMBERS)()
    library.begin(plan, 0)
    try:
        return [torch.empty(one.size, dtype=torch.uint8) for one in held]
    finally:
        library.end(stats)
        library.plan_release(plan)


class Recorder:
    """Runs a program whose source marks the ends of its steps, and keeps what it asked of the allocator.

    Attributes:
        events: pairs of the last run, as `peakfold.plan.memory.lifetimes.recorded` reads them.
        beside: sizes of the blocks that other threads may have at once meanwhile.
        choices: whether the first side of a branch runs in the next run; that of others does.
    """

    def __init__(self, device: str = "cpu") -> None:
        """Record what is asked for on a device, by its current stream where it has streams."""
        self.device = device
        self.events: list[tuple[int, int]] = []
        self.beside: tuple[int, ...] = ()
        self.choices: Choices = {}
        self._passed: set[int] = set()

    def holds(self, fork: int, value: object) -> bool:
        """Decide which side of a branch runs, whatever the value."""
        return self._noted(fork, self.choices.get(fork, True))

    def goes_on(self, fork: int, value: object) -> bool:
        """Have a loop make one pass, whatever the value."""
        first = fork not in self._passed
        self._passed ^= {fork}
        return self._noted(fork, first)

    def over(self, fork: int) -> None:
        """Note that a branch or loop is over."""
        native(kind_of(self.device)).note(turn(fork, OVER)[1])

    def _noted(self, fork: int, way: bool) -> bool:
        native(kind_of(self.device)).note(turn(fork, FIRST if way else SECOND)[1])
        return way

    def run(self, step: Callable[[Callable[[], None]], Results]) -> Results:
        """Run a step, which is given the function that marks the end of a part of it."""
        library = native(kind_of(self.device))
        self._passed.clear()
        with current(self.device):
            handle = library.record_begin()
        try:
            return step(library.mark)
        finally:
            count = int(library.record_end(handle))
            pairs = (ctypes.c_int64 * (2 * count))()
            self.beside = tuple(_beside(library, handle))
            library.record_take(handle, pairs)
            self.events = list(zip(pairs[::2], pairs[1::2], strict=True))


def _beside(library: Native, recording: int) -> Iterator[int]:
    """Yield a size for each block that other threads may have at once: as they had, or one a thread."""
    rows = (ctypes.c_int64 * (3 * SIZES))()
    for i in range(int(library.record_beside(recording, rows, SIZES))):
        size, most, count = rows[3 * i : 3 * i + 3]
        yield from [size] * min(count, max(most, torch.get_num_threads()))


def _plan(library: Native, layout: Layout, memory: Memory, lift: int) -> int:
    calls = layout.trace.calls
    requests = [layout.trace.requests[i] for i in calls]
    count = len(requests)
    sizes = (ctypes.c_int64 * count)(*(request.size for request in requests))
    outlives = (ctypes.c_int8 * count)(*(request.dies is None for request in requests))
    places_ = (
        offset + lift if request.dies is None else offset
        for offset, request in zip((layout.offsets[i] for i in calls), requests, strict=True)
    )
    offsets = (ctypes.c_int64 * count)(*places_)
    plan = int(library.plan(memory.handle, count, sizes, offsets, outlives))
    for size, place in zip(layout.trace.beside, layout.beside, strict=True):
        library.plan_beside(plan, size, place)
    return plan


def _words(layout: Layout, place: int, size: int) -> str:
    requests = [layout.trace.requests[i] for i in layout.trace.calls]
    at = f"before {requests[place].name}" if place < len(requests) else "after the last planned one"
    return f"{size} bytes {at}"
