"""What a program's allocations come to in other allocators: bytes that they reserve, and why.

Each model replays the allocations of a trace, step after step, until nothing new is reserved. That is certain
once it stands between two steps as it stood between two earlier ones. A model that gets there after many
steps, as with large results it may, is stopped before.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from peakfold.plan.memory.allocators import Bfc, Caching, Pool, Settings, SizeClasses
from peakfold.plan.memory.trace import Trace

STEPS = 3
"""Are replayed at least, unless it is certain before."""
MOST_STEPS = 200
MOST_REQUESTS = 400_000
"""Of all steps beyond `STEPS` together; some 4 seconds."""
WORTH = 0.02
"""A setting is advised where it saves this share of what the default reserves."""


@dataclass(frozen=True)
class Replay:
    """What a model comes to.

    Attributes:
        model: its name and settings.
        reserved: the most bytes taken from the system.
        allocated: the most bytes that were asked for at once.
        cached: bytes of wholly free segments between two steps: what emptying the cache gives back.
        compaction: bytes that moving all live blocks together between two steps would give back.
    """

    model: str
    reserved: int
    allocated: int
    cached: int
    compaction: int

    @property
    def fragmentation(self) -> float:
        """Share of the reserved bytes that nobody asked for at the peak."""
        return 1.0 - self.allocated / self.reserved if self.reserved else 0.0


def replay(trace: Trace, pool: Pool, steps: int | None = None) -> Replay:
    """Replay the allocations of a program, step after step; a result is given back when the next is made.

    Args:
        trace: the allocations.
        pool: a fresh one; it is used up.
        steps: how often at most; by default until the pool is in a steady state, within `MOST_STEPS` and
            `MOST_REQUESTS`.

    Example:
        >>> from peakfold.plan.memory.trace import Request
        >>> two = Trace((Request(600, 0, 2), Request(600, 1, 3)), length=4)
        >>> found = replay(two, Caching())
        >>> found.allocated, found.reserved, found.cached
        (1200, 2097152, 2097152)
    """
    count = len(trace.requests)
    order = tuple(events(trace))
    live = most = 0
    seen: set[Hashable] = set()
    for step in range(_most_steps(count) if steps is None else steps):
        for ident, size in order:
            if size > 0:
                pool.take(step * count + ident, size)
            else:
                pool.give(step * count + ident)
            live += size
            most = max(most, live)
        for ident in trace.kept if step else ():
            pool.give((step - 1) * count + ident)
            live -= trace.requests[ident].size
        if step and pool.state in seen:
            break
        seen.add(pool.state)
    return Replay(pool.name, pool.reserved, most, pool.cached, pool.reserved - pool.used)


def _most_steps(requests: int) -> int:
    return max(STEPS, min(MOST_STEPS, MOST_REQUESTS // max(requests, 1)))


def events(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield (index, bytes) of what a program takes and, negative, gives back, in order."""
    found = []
    for i, request in enumerate(trace.requests):
        found.append((request.born, 1, i, request.size))
        if request.dies is not None:
            found.append((request.dies, 0, i, -request.size))
    yield from ((i, size) for _, _, i, size in sorted(found))


def compare(trace: Trace) -> tuple[Replay, ...]:
    """Return what every model comes to: BFC, the caching allocator as it is set by default, size classes."""
    return tuple(replay(trace, pool) for pool in (Bfc(), Caching(), SizeClasses()))


TRIED = (
    Settings(expandable_segments=True),
    Settings(max_split_size_mb=64),
    Settings(max_split_size_mb=256),
    Settings(roundup_power2_divisions=4),
    Settings(expandable_segments=True, roundup_power2_divisions=8),
)


def advice(trace: Trace, tried: Sequence[Settings] = TRIED) -> str:
    """Return in words which settings of PyTorch's caching allocator this program is served best by."""
    default = replay(trace, Caching())
    found = [(replay(trace, Caching(settings)), settings) for settings in tried]
    best, settings = min(found, key=lambda pair: pair[0].reserved)
    if best.reserved > (1 - WORTH) * default.reserved:
        return f"on CUDA the default settings serve this program: {default.reserved} bytes reserved"
    return (
        f"on CUDA, PYTORCH_CUDA_ALLOC_CONF={settings} would reserve {best.reserved} bytes "
        f"instead of {default.reserved}"
    )
