"""From when to when a block of an arena is drawn, in steps."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from peakfold.plan.memory.trace import Request

Change = tuple[int, bool]
"""When something is given back (False) or asked for (True)."""


def extents(requests: Sequence[Request], steps: int) -> list[tuple[float, float]]:
    """Return the first step of each request and the first one after it.

    A step in which something is asked for after something was given back is divided into equal pieces, one
    for each time that this happens: what takes the place of another within a step begins where that ends.

    Args:
        requests: of a program.
        steps: of it; what is asked for after the last one counts as of it.

    Example:
        >>> extents((Request(64, 0, 2, 0, until=0), Request(64, 2, 9, 0, until=3), Request(4, 3, None, 1)), 5)
        [(0.0, 0.5), (0.5, 4.0), (1.0, 5.0)]
    """
    last = max(steps, 1) - 1
    changes: dict[int, list[Change]] = {}
    for request in requests:
        changes.setdefault(_within(request.row, last), []).append((request.born, True))
        if request.dies is not None:
            changes.setdefault(_within(request.until, last), []).append((request.dies, False))
    begins = {row: _begins(sorted(found)) for row, found in changes.items()}

    def piece(row: int, at: int) -> tuple[int, int]:
        return bisect_right(begins[row], at), len(begins[row]) + 1

    found = []
    for request in requests:
        row, until = _within(request.row, last), _within(request.until, last)
        before, count = piece(row, request.born)
        end = last + 1.0
        if request.dies is not None:
            # what is given back when the next piece begins is of the one before
            index, pieces = piece(until, request.dies - 1)
            end = until + (index + 1) / pieces
        found.append((row + before / count, end))
    return found


def _within(row: int, last: int) -> int:
    return min(max(row, 0), last)


def _begins(changes: Sequence[Change]) -> list[int]:
    """Return when each piece but the first begins: at what is asked for after something was given back."""
    return [at for (_, before), (at, asks) in pairwise(changes) if asks and not before]
