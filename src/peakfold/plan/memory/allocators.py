"""Models of allocators: TensorFlow's BFC, PyTorch's caching allocator for CUDA, a pool of size classes."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from peakfold.plan.memory.segments import Segments

MIB = 1 << 20


class Pool(Protocol):
    """An allocator in the small: takes and gives back blocks, by ids of the caller."""

    @property
    def name(self) -> str:
        """Name and settings."""

    @property
    def reserved(self) -> int:
        """Bytes taken from the system."""

    @property
    def cached(self) -> int:
        """Bytes of wholly free segments."""

    @property
    def used(self) -> int:
        """Bytes of live blocks, rounded as the allocator does."""

    @property
    def state(self) -> Hashable:
        """All that decides what it does next: where blocks are free and where live ones lie, oldest first."""

    def take(self, ident: int, size: int) -> None:
        """Take a block."""

    def give(self, ident: int) -> None:
        """Give a block back."""


@dataclass
class Bfc:
    """TensorFlow's best fit with coalescing, with ``allow_growth``: regions that double, blocks of 256 bytes.

    A region that was made larger for a request is the size of the next one too; another one is doubled.
    """

    LINE: ClassVar[int] = 256
    FIRST: ClassVar[int] = 2 * MIB
    WASTE: ClassVar[int] = 128 * MIB

    segments: Segments = field(default_factory=Segments)
    name: str = "BFC"
    _region: int = FIRST
    _blocks: dict[int, int] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        """Bytes taken from the system."""
        return self.segments.reserved

    @property
    def cached(self) -> int:
        """Bytes that emptying the cache gives back."""
        return self.segments.cached

    @property
    def used(self) -> int:
        """Bytes of live blocks, rounded."""
        return self.segments.used

    @property
    def state(self) -> Hashable:
        """Where blocks are free, and where live ones lie, oldest first."""
        return self.segments.free, tuple(self._blocks.values())

    def take(self, ident: int, size: int) -> None:
        """Take a block."""
        size = _up(size, self.LINE)
        block = self.segments.best(size)
        if block is None:
            block = self.segments.grow(self._next_region(size))
        split = block[0] >= 2 * size or block[0] - size >= self.WASTE
        self._blocks[ident] = self.segments.cut(block, size, split=split)

    def give(self, ident: int) -> None:
        """Give a block back."""
        self.segments.join(self._blocks.pop(ident))

    def _next_region(self, size: int) -> int:
        region = self._region
        while region < size:
            region *= 2
        self._region = region if region > self._region else 2 * region
        return region


@dataclass(frozen=True)
class Settings:
    """Settings of PyTorch's caching allocator, named as in ``PYTORCH_CUDA_ALLOC_CONF``.

    Attributes:
        max_split_size_mb: blocks from this size on are neither split nor used for smaller ones; None for off.
        expandable_segments: one segment a pool, which grows by whole pages.
        roundup_power2_divisions: sizes are rounded up to this many steps between powers of two, a power of
            two itself; 0 or 1 for off.
    """

    max_split_size_mb: int | None = None
    expandable_segments: bool = False
    roundup_power2_divisions: int = 0

    def __str__(self) -> str:
        parts = []
        if self.expandable_segments:
            parts.append("expandable_segments:True")
        if self.max_split_size_mb is not None:
            parts.append(f"max_split_size_mb:{self.max_split_size_mb}")
        if self.roundup_power2_divisions:
            parts.append(f"roundup_power2_divisions:{self.roundup_power2_divisions}")
        return ",".join(parts)


@dataclass
class Caching:
    """PyTorch's caching allocator: blocks of 512 bytes, a pool for small ones and one for the others.

    Without a limit of the device: what is done when it is full (releasing cached blocks, collecting garbage
    above a threshold) never happens.
    """

    LINE: ClassVar[int] = 512
    SMALL: ClassVar[int] = MIB
    SMALL_SEGMENT: ClassVar[int] = 2 * MIB
    LARGE_SEGMENT: ClassVar[int] = 20 * MIB
    OWN_SEGMENT: ClassVar[int] = 10 * MIB
    ROUND_LARGE: ClassVar[int] = 2 * MIB

    settings: Settings = Settings()
    small: Segments = field(default_factory=Segments)
    large: Segments = field(default_factory=Segments)
    _blocks: dict[int, tuple[Segments, int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name and settings."""
        return " ".join(filter(None, ("caching", str(self.settings))))

    @property
    def reserved(self) -> int:
        """Bytes taken from the system."""
        return self.small.reserved + self.large.reserved

    @property
    def cached(self) -> int:
        """Bytes that emptying the cache gives back."""
        if self.settings.expandable_segments:
            return self.small.whole_pages(self.SMALL_SEGMENT) + self.large.whole_pages(self.LARGE_SEGMENT)
        return self.small.cached + self.large.cached

    @property
    def used(self) -> int:
        """Bytes of live blocks, rounded."""
        return self.small.used + self.large.used

    @property
    def state(self) -> Hashable:
        """Where blocks are free, and where live ones lie, oldest first."""
        live = tuple((pool is self.small, start) for pool, start in self._blocks.values())
        return self.small.free, self.large.free, live

    def take(self, ident: int, size: int) -> None:
        """Take a block."""
        size = self._rounded(size)
        small = size <= self.SMALL
        pool = self.small if small else self.large
        block = pool.best(size, endless=self.settings.expandable_segments)
        if block is None or not self._allowed(block[0], size):
            block = self._grown(pool, size, small)
        split = self._splits(size, block[0] - size, small)
        self._blocks[ident] = (pool, pool.cut(block, size, split=split))

    def give(self, ident: int) -> None:
        """Give a block back."""
        pool, start = self._blocks.pop(ident)
        pool.join(start)

    def _rounded(self, size: int) -> int:
        steps = self.settings.roundup_power2_divisions
        if steps > 1 and size > self.LINE * steps:
            power = 1 << (size.bit_length() - 1)
            return size if size == power else _up(size, power // steps)
        return _up(size, self.LINE)

    def _splits(self, size: int, rest: int, small: bool) -> bool:
        """Whether the rest of a block becomes one of its own."""
        if small or self.settings.expandable_segments:
            return rest >= self.LINE
        return rest > self.SMALL and not self._is_over(size)

    def _allowed(self, whole: int, size: int) -> bool:
        """Whether a request may take a block: beyond the limit of splitting only one of about its size."""
        if self._is_over(size):
            return whole < size + self.LARGE_SEGMENT
        return not self._is_over(whole)

    def _is_over(self, size: int) -> bool:
        limit = self.settings.max_split_size_mb
        return limit is not None and size >= limit * MIB

    def _grown(self, pool: Segments, size: int, small: bool) -> tuple[int, int]:
        if self.settings.expandable_segments:
            return pool.extend(size, self.SMALL_SEGMENT if small else self.LARGE_SEGMENT)
        if small:
            return pool.grow(self.SMALL_SEGMENT)
        return pool.grow(self.LARGE_SEGMENT if size < self.OWN_SEGMENT else _up(size, self.ROUND_LARGE))


@dataclass
class SizeClasses:
    """A pool of size classes, four between powers of two, never split and never joined."""

    STEPS: ClassVar[int] = 4
    LEAST: ClassVar[int] = 64

    name: str = "size classes"
    reserved: int = 0
    used: int = 0
    _free: dict[int, int] = field(default_factory=dict)
    _blocks: dict[int, int] = field(default_factory=dict)

    @property
    def cached(self) -> int:
        """Bytes that emptying the cache gives back."""
        return self.reserved - self.used

    @property
    def state(self) -> Hashable:
        """How many blocks of each class are free, and the classes of live ones, oldest first."""
        return frozenset(self._free.items()), tuple(self._blocks.values())

    def take(self, ident: int, size: int) -> None:
        """Take a block."""
        size = _class(max(size, self.LEAST), self.STEPS)
        if self._free.get(size):
            self._free[size] -= 1
        else:
            self.reserved += size
        self.used += size
        self._blocks[ident] = size

    def give(self, ident: int) -> None:
        """Give a block back."""
        size = self._blocks.pop(ident)
        self.used -= size
        self._free[size] = self._free.get(size, 0) + 1


def _up(size: int, line: int) -> int:
    return -(-size // line) * line


def _class(size: int, steps: int) -> int:
    power = 1 << (size.bit_length() - 1)
    return _up(size, max(power // steps, 1))
