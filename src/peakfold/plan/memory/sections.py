"""Sections: the largest sets of buffers that are live together, and a problem as arrays by section.

Any two buffers that are live together share a section, so sections can stand for time. There are at most
as many as buffers.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from peakfold.plan.memory.problem import Problem
from peakfold.plan.memory.tables import Ints, Tables


@dataclass(frozen=True)
class Columns:
    """A problem as arrays, by buffer.

    Attributes:
        lower: first section in which it is live.
        upper: one after the last such section.
        width: its lifetime, in the problem's own time.
        size: bytes.
        alignment: bytes.
        total: by section, the sum of sizes.
    """

    lower: Ints
    upper: Ints
    width: Ints
    size: Ints
    alignment: Ints
    total: Ints


def columns(problem: Problem) -> Columns:
    """Replace times by sections."""
    rows = np.array([(b.lower, b.upper, b.size, b.alignment) for b in problem.buffers], np.int64)
    lower, upper, size, alignment = (np.ascontiguousarray(column) for column in rows.T)
    starts, ends = np.unique(lower), np.unique(upper)
    next_start = np.append(starts[1:], np.iinfo(np.int64).max)
    closed = np.searchsorted(ends, next_start, "right") > np.searchsorted(ends, starts, "right")
    points = starts[closed]
    first, last = np.searchsorted(points, lower), np.searchsorted(points, upper)
    change = np.zeros(len(points) + 1, np.int64)
    np.add.at(change, first, size)
    np.subtract.at(change, last, size)
    return Columns(first, last, upper - lower, size, alignment, np.cumsum(change)[:-1])


def pairs(table: Columns) -> int:
    """How many ordered pairs of buffers are live together."""
    count = len(table.size)
    before = np.searchsorted(np.sort(table.upper), table.lower, "right")
    after = count - np.searchsorted(np.sort(table.lower), table.upper, "left")
    return int((count - 1 - before - after).sum())


def tables(table: Columns) -> Tables:
    """The arrays of the search kernel."""
    sections = len(table.total)
    near_start, near = _neighbours(table.lower, table.upper)
    member_start, member = _members(table.lower, table.upper, sections)
    return Tables(
        table.size, table.alignment, table.lower, table.upper, member_start, member, near_start, near
    )


@njit(cache=True)
def _members(lower: Ints, upper: Ints, sections: int) -> tuple[Ints, Ints]:
    start = np.zeros(sections + 1, np.int64)
    for buffer in range(len(lower)):
        for section in range(lower[buffer], upper[buffer]):
            start[section + 1] += 1
    start = np.cumsum(start)
    member = np.empty(start[-1], np.int64)
    fill = start.copy()
    for buffer in range(len(lower)):
        for section in range(lower[buffer], upper[buffer]):
            member[fill[section]] = buffer
            fill[section] += 1
    return start, member


@njit(cache=True)
def _neighbours(lower: Ints, upper: Ints) -> tuple[Ints, Ints]:
    count = len(lower)
    start = np.zeros(count + 1, np.int64)
    for a in range(count):
        for b in range(count):
            start[a + 1] += a != b and lower[a] < upper[b] and lower[b] < upper[a]
    start = np.cumsum(start)
    near = np.empty(start[-1], np.int64)
    at = 0
    for a in range(count):
        for b in range(count):
            if a != b and lower[a] < upper[b] and lower[b] < upper[a]:
                near[at] = b
                at += 1
    return start, near
