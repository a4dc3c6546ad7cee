"""Greedy planners: buffers one after the other, each into the first or the tightest gap that holds it."""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from peakfold.plan.memory.sections import Columns
from peakfold.plan.memory.tables import Ints

Number = TypeVar("Number", np.int64, np.float64)


def by_size(table: Columns) -> Ints:
    """Place the largest first, each into its tightest gap (Pisarchyk and Lee 2020).

    Returns:
        Offsets, by buffer.
    """
    return fit(table, np.lexsort((-table.width, -table.size)), tight=True)


def fit(table: Columns, order: Ints, tight: bool) -> Ints:
    """Place buffers in an order, each into its first gap, or into its tightest."""
    offsets: Ints = _fit(order.astype(np.int64), table.lower, table.upper, table.size, table.alignment, tight)
    return offsets


def orders(table: Columns) -> Iterator[Ints]:
    """Orders that are worth trying, the best on most problems first."""
    crowd = crowding(table, table.total)
    area = table.size.astype(np.float64) * table.width
    yield np.lexsort((-area, -table.width, -crowd))
    yield np.lexsort((-table.width, -table.size))
    yield np.lexsort((-table.width, -area, -crowd))
    yield np.lexsort((-table.size, -table.width))
    yield np.lexsort((-table.size, -area))
    yield np.lexsort((-table.width, -table.size, -crowd))


def crowding(table: Columns, weight: NDArray[Number]) -> NDArray[Number]:
    """The largest weight of a section in which a buffer is live, by buffer."""
    largest: NDArray[Number] = _largest(weight, table.lower, table.upper)
    return largest


@njit(cache=True)
def _largest(weight: NDArray[Number], lower: Ints, upper: Ints) -> NDArray[Number]:
    out = np.empty(len(lower), weight.dtype)
    for buffer in range(len(lower)):
        out[buffer] = weight[lower[buffer] : upper[buffer]].max()
    return out


@njit(cache=True)
def _fit(order: Ints, lower: Ints, upper: Ints, size: Ints, alignment: Ints, tight: bool) -> Ints:
    count = len(order)
    placed = np.empty((count, 4), np.int64)
    offset = np.zeros(count, np.int64)
    for done in range(count):
        b = order[done]
        at = _gap(placed[:done], lower[b], upper[b], size[b], alignment[b], tight)
        offset[b] = at
        row = done
        while row > 0 and placed[row - 1, 0] > at:
            placed[row] = placed[row - 1]
            row -= 1
        placed[row, 0], placed[row, 1] = at, at + size[b]
        placed[row, 2], placed[row, 3] = lower[b], upper[b]
    return offset


@njit(cache=True)
def _gap(placed: Ints, lower: int, upper: int, size: int, alignment: int, tight: bool) -> int:
    """The start of the first or tightest gap among rows (offset, end, lower, upper) sorted by offset."""
    floor, best, least = 0, -1, np.int64(1 << 62)
    for row in range(len(placed)):
        if placed[row, 2] >= upper or lower >= placed[row, 3]:
            continue
        room = placed[row, 0] - floor
        if size <= room < least:
            best, least = floor, room
            if not tight:
                return best
        if placed[row, 1] > floor:
            floor = (placed[row, 1] + alignment - 1) & -alignment
    return best if best >= 0 else floor
