"""An address space in segments, cut into blocks: what models of allocators share."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field


@dataclass
class Segments:
    """Segments of an address space, cut into blocks; free neighbours in a segment are joined.

    Attributes:
        reserved: bytes of all segments.
        used: bytes of live blocks.
    """

    reserved: int = 0
    used: int = 0
    _size: dict[int, int] = field(default_factory=dict)
    _segment: dict[int, int] = field(default_factory=dict)
    _extent: dict[int, int] = field(default_factory=dict)
    _free: list[tuple[int, int]] = field(default_factory=list)
    _starts: dict[int, int] = field(default_factory=dict)
    _next: int = 0

    def best(self, size: int, *, endless: bool = False) -> tuple[int, int] | None:
        """Return (size, start) of the smallest free block that holds so much.

        Args:
            size: bytes.
            endless: the one segment can grow, so that a free block at its end counts as the largest of all.
        """
        at = bisect_left(self._free, (size, -1))
        found = self._free[at : at + 2]
        is_last = endless and bool(found) and sum(found[0]) == self._extent[0]
        return found[-1 if is_last else 0] if found else None

    def grow(self, size: int) -> tuple[int, int]:
        """Reserve one more segment; return its block, which is free."""
        start = self._next
        self._next += size + 1
        self.reserved += size
        self._extent[start] = size
        self._segment[start] = start
        self._put(start, size)
        return size, start

    def extend(self, size: int, page: int) -> tuple[int, int]:
        """Lengthen the one segment by whole pages until its last block holds so much; return that block."""
        if not self._extent:
            return self.grow(-(-size // page) * page)
        end = self._extent[0]
        last = self._starts.get(end)
        tail = 0 if last is None else self._size[last]
        more = max(0, -(-(size - tail) // page) * page)
        start = end if last is None else last
        if last is not None:
            self._drop(last)
        self._segment[start] = 0
        self._extent[0] += more
        self.reserved += more
        self._put(start, tail + more)
        return tail + more, start

    def cut(self, block: tuple[int, int], size: int, *, split: bool) -> int:
        """Take a free block, the rest of which stays free where it is split; return its start."""
        whole, start = block
        self._drop(start)
        if split and whole > size:
            self._segment[start + size] = self._segment[start]
            self._put(start + size, whole - size)
            whole = size
        self._size[start] = whole
        self.used += whole
        return start

    def join(self, start: int) -> None:
        """Give a block back."""
        size = self._size[start]
        self.used -= size
        segment = self._segment[start]
        after = start + size
        if after in self._size and (self._size[after], after) in self and self._segment[after] == segment:
            size += self._size[after]
            self._drop(after)
        before = self._starts.get(start)
        if before is not None and self._segment[before] == segment:
            size += self._size[before]
            self._drop(before)
            del self._segment[start]
            start = before
        self._put(start, size)

    def __contains__(self, block: tuple[int, int]) -> bool:
        """Whether a block (size, start) is free."""
        at = bisect_left(self._free, block)
        return at < len(self._free) and self._free[at] == block

    @property
    def free(self) -> tuple[tuple[int, int], ...]:
        """Free blocks as (size, start), the smallest first."""
        return tuple(self._free)

    @property
    def cached(self) -> int:
        """Bytes of wholly free segments."""
        return sum(size for start, size in self._extent.items() if (size, start) in self)

    def whole_pages(self, page: int) -> int:
        """Bytes of the pages that lie in free blocks alone."""
        spans = ((start // -page * -page, (start + size) // page * page) for size, start in self._free)
        return sum(max(0, stop - start) for start, stop in spans)

    def _put(self, start: int, size: int) -> None:
        self._size[start] = size
        self._starts[start + size] = start
        insort(self._free, (size, start))

    def _drop(self, start: int) -> None:
        size = self._size.pop(start)
        del self._starts[start + size]
        del self._free[bisect_left(self._free, (size, start))]
