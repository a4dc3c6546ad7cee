"""The archive of a search: the fastest plan found below each of its edges of bytes.

Whatever one budget's search meets serves all the others.
"""

from typing import NamedTuple

import numpy as np

from peakfold.plan.schedule.arrays import Bytes, Floats
from peakfold.plan.schedule.code import Modes, Outcome
from peakfold.plan.schedule.kernel import compiled


class Archive(NamedTuple):
    """The fastest plan found for each range of peaks.

    Attributes:
        edges: upper ends of the ranges, rising.
        seconds: of the fastest plan whose peak lies in the range; infinite where none is known.
        peaks: its peak.
        modes: its decisions, one row a range.
        tried: number of plans decoded, in its only element.
    """

    edges: Bytes
    seconds: Floats
    peaks: Bytes
    modes: Modes
    tried: Bytes


def archive(edges: Bytes, slots: int) -> Archive:
    """Return an empty archive."""
    count = len(edges)
    return Archive(
        edges,
        np.full(count, np.inf),
        np.full(count, np.iinfo(np.int64).max, np.int64),
        np.zeros((count, slots), np.int16),
        np.zeros(1, np.int64),
    )


@compiled
def copy(source: Modes, target: Modes) -> None:
    """Write one vector of modes over another."""
    for slot in range(len(source)):
        target[slot] = source[slot]


@compiled
def note(kept: Archive, modes: Modes, outcome: Outcome) -> None:
    """Put a decoded plan into the archive where it is the fastest of its range."""
    kept.tried[0] += 1
    if outcome.length < 0:
        return
    low, row = 0, len(kept.edges)
    while low < row:
        middle = (low + row) // 2
        if kept.edges[middle] < outcome.peak:
            low = middle + 1
        else:
            row = middle
    if row < len(kept.edges):
        better = outcome.seconds < kept.seconds[row]
        if better or (outcome.seconds == kept.seconds[row] and outcome.peak < kept.peaks[row]):
            kept.seconds[row] = outcome.seconds
            kept.peaks[row] = outcome.peak
            copy(modes, kept.modes[row])
