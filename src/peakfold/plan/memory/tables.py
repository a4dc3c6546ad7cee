"""What the search kernel works on: a problem as arrays, an order, and a search in progress."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint64]

LIMIT, FOUND, DEAD = 0, 1, 2
FORWARD, BACKWARD, WIDE = range(3)
DEPTH, TRAIL, POOL, QUEUE, STEPS, FROM, TO = range(7)
FAR = np.int64(1 << 62)
ONE = np.uint64(1)


class Tables(NamedTuple):
    """A problem as arrays, by buffer unless said otherwise.

    Attributes:
        size: bytes.
        alignment: bytes; every offset is a multiple.
        first: first section in which the buffer is live.
        last: one after the last such section.
        member_start: by section, where its buffers start in ``member``.
        member: the buffers of all sections, in a row.
        near_start: where the neighbours start in ``near``.
        near: the neighbours, buffers that are live together with this one, in a row.
    """

    size: Ints
    alignment: Ints
    first: Ints
    last: Ints
    member_start: Ints
    member: Ints
    near_start: Ints
    near: Ints


class Order(NamedTuple):
    """Which buffer goes next, by buffer: the least floor less lead, then the least rank.

    Any order finds a packing if there is one; a good one finds it soon.

    Attributes:
        rank: breaks ties.
        lead: bytes by which the floor counts as lower.
        way: FORWARD or BACKWARD: sections are checked in turn until one is dead, the ones queued last first.
            WIDE: all are checked, and the earliest of the conflicts counts, the smallest that can be had.
        early: of a buffer that lies higher than a proof needs, the first decision that raised it enough is
            blamed; else the last that raised it.
    """

    rank: Ints
    lead: Ints
    way: int = 0
    early: bool = True


class State(NamedTuple):
    """A search in progress, by buffer unless said otherwise.

    Attributes:
        head: the floor of an unplaced buffer, the offset of a placed one.
        low: a proven least offset, at least ``head``.
        why: what proves ``low``: -1 nothing, k >= 0 the decision of level k, -2 - r row r of ``pool``.
        past: the row of ``trail`` that says what the buffer was before, or -1.
        held: some unplaced neighbour lies below.
        level: the level at which the buffer was placed, or -1.
        rest: by section, bytes of its unplaced buffers.
        watch: by section, a buffer that could be its lowest.
        trail: rows (buffer, head, low, why, held, past) to undo.
        chosen: by level, the buffer that was placed.
        mark: by level, lengths of trail and pool before the decision.
        pool: sets of levels as bits, one a row.
        queue: ranges of sections to check, that lie beside each other.
        conflict: the set of levels in conflict, as bits.
        best: the earliest conflict of those that were found at once.
        heat: by section, how often it was found dead.
        counter: depth, lengths of trail, pool and queue, steps so far, and the range that the queue covers.
    """

    head: Ints
    low: Ints
    why: Ints
    past: Ints
    held: Flags
    level: Ints
    rest: Ints
    watch: Ints
    trail: Ints
    chosen: Ints
    mark: Ints
    pool: Words
    queue: Ints
    conflict: Words
    best: Words
    heat: Ints
    counter: Ints


def start(tables: Tables) -> State:
    """The state with nothing placed and every section still to check."""
    count, sections = len(tables.size), len(tables.member_start) - 1
    words = (count + 63) // 64
    rest = np.add.reduceat(tables.size[tables.member], tables.member_start[:-1])
    queue = np.zeros((2 * count + 2, 2), np.int64)
    queue[0] = 0, sections
    counter = np.zeros(7, np.int64)
    counter[QUEUE], counter[TO] = 1, sections
    return State(
        head=np.zeros(count, np.int64),
        low=np.zeros(count, np.int64),
        why=np.full(count, -1, np.int64),
        past=np.full(count, -1, np.int64),
        held=np.zeros(count, np.bool_),
        level=np.full(count, -1, np.int64),
        rest=rest.astype(np.int64),
        watch=tables.member[tables.member_start[:-1]].copy(),
        trail=np.zeros((len(tables.near) // 2 + (1 + min(count, 64)) * count + 64, 6), np.int64),
        chosen=np.zeros(count + 1, np.int64),
        mark=np.zeros((count + 1, 2), np.int64),
        pool=np.zeros((min(count, 64) * count + 64, words), np.uint64),
        queue=queue,
        conflict=np.zeros(words, np.uint64),
        best=np.zeros(words, np.uint64),
        heat=np.zeros(sections, np.int64),
        counter=counter,
    )
