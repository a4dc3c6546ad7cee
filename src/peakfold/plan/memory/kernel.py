"""The search kernel: place or hold, with conflict sets.

The state of the search is a partial packing from below. A *placed* buffer has its final offset and lies
below every unplaced buffer that is live with it. One step takes an unplaced buffer, by default one with
the lowest *floor* (the top of the placed buffers under it), and places it there. When that leads to a dead
end, the buffer is *held*: in every solution left, some unplaced neighbour lies below it, so its offset is
at least the smallest top that an unplaced neighbour can have. Either side loses no solution: a packing can
always be pushed down until every buffer rests on another one or on zero.

A *section* is a largest set of buffers that are live together. A section is dead when no unplaced buffer
in it can be the lowest one and leave room for the others. The decisions that made it dead form a
*conflict set*; the search jumps back to the latest of them and skips all decisions between. Which of several
dead sections counts, and how far its conflict reaches, is the *way* of the search: no way is best for every
problem, so that the exact solver takes turns.

The idea of canonical solutions and of checking sections is MiniMalloc's (Moffitt, ASPLOS 2023); holding a
buffer instead of ordering all placements by offset, the conflict sets and the watched buffers are ours.
"""

import numpy as np
from numba import njit

from peakfold.plan.memory.tables import (
    BACKWARD,
    DEAD,
    DEPTH,
    FAR,
    FOUND,
    LIMIT,
    ONE,
    POOL,
    QUEUE,
    STEPS,
    TRAIL,
    WIDE,
    Order,
    State,
    Tables,
    Words,
)


@njit(cache=True)
def _aligned(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) & -alignment


@njit(cache=True)
def _touch(tables: Tables, state: State, order: Order, buffer: int) -> None:
    """Queue the sections of a buffer; the last one queued is checked first."""
    first, last = tables.first[buffer], tables.last[buffer]
    for i in range(last - first):
        section = last - 1 - i if order.way == BACKWARD else first + i
        if not state.queued[section]:
            state.queued[section] = True
            state.queue[state.counter[QUEUE]] = section
            state.counter[QUEUE] += 1


@njit(cache=True)
def _record(state: State, buffer: int) -> None:
    """Remember what a buffer is now, to undo a change."""
    row = state.counter[TRAIL]
    state.trail[row, 0] = buffer
    state.trail[row, 1] = state.head[buffer]
    state.trail[row, 2] = state.low[buffer]
    state.trail[row, 3] = state.why[buffer]
    state.trail[row, 4] = state.held[buffer]
    state.counter[TRAIL] = row + 1


@njit(cache=True)
def _blame_level(state: State, level: int) -> None:
    state.conflict[level >> 6] |= ONE << np.uint64(level & 63)


@njit(cache=True)
def _blame_low(state: State, buffer: int) -> None:
    """Add to the conflict set what proves the least offset of a buffer."""
    why = state.why[buffer]
    if why >= 0:
        _blame_level(state, why)
    elif why < -1:
        for word in range(len(state.conflict)):
            state.conflict[word] |= state.pool[-2 - why, word]


@njit(cache=True)
def _alive(tables: Tables, state: State, section: int, capacity: int) -> bool:
    """Whether some unplaced buffer can be the lowest one left in a section."""
    room = capacity - state.rest[section]
    watched = state.watch[section]
    if state.rest[section] == 0 or (state.level[watched] < 0 and state.low[watched] <= room):
        return True
    for i in range(tables.member_start[section], tables.member_start[section + 1]):
        buffer = tables.member[i]
        if state.level[buffer] < 0 and state.low[buffer] <= room:
            state.watch[section] = buffer
            return True
    return False


@njit(cache=True)
def _blame_section(tables: Tables, state: State, section: int, wide: bool) -> None:
    """The conflict set is what proves where unplaced buffers lie, and unless wide what is placed below."""
    state.conflict[:] = 0
    state.heat[section] += 1
    for i in range(tables.member_start[section], tables.member_start[section + 1]):
        buffer = tables.member[i]
        if state.level[buffer] < 0:
            _blame_low(state, buffer)
        elif not wide:
            _blame_level(state, state.level[buffer])


@njit(cache=True)
def _consistent(tables: Tables, state: State, order: Order, capacity: int) -> bool:
    """Check the queued sections; where one is dead, fill the conflict set."""
    alive = True
    while state.counter[QUEUE] > 0:
        state.counter[QUEUE] -= 1
        section = state.queue[state.counter[QUEUE]]
        state.queued[section] = False
        if (not alive and order.way != WIDE) or _alive(tables, state, section, capacity):
            continue
        _blame_section(tables, state, section, order.way == WIDE)
        if alive or (order.way == WIDE and _earlier(state.conflict, state.best)):
            state.best[:] = state.conflict
        alive = False
    if not alive:
        state.conflict[:] = state.best
    return alive


@njit(cache=True)
def _earlier(one: Words, other: Words) -> bool:
    """Whether a set of levels is before another one, the latest levels compared first."""
    for word in range(len(one) - 1, -1, -1):
        if one[word] != other[word]:
            return bool(one[word] < other[word])
    return False


@njit(cache=True)
def _next(state: State, order: Order) -> int:
    """The unplaced buffer that goes next, of those that are not held, or -1."""
    best, floor, place = -1, FAR, FAR
    for buffer in range(len(order.rank)):
        if state.level[buffer] >= 0 or state.held[buffer]:
            continue
        head, rank = state.head[buffer] - order.lead[buffer], order.rank[buffer]
        if head < floor or (head == floor and rank < place):
            best, floor, place = buffer, head, rank
    return best


@njit(cache=True)
def _place(tables: Tables, state: State, order: Order, buffer: int) -> None:
    """Place a buffer on its floor, below its unplaced neighbours."""
    depth = state.counter[DEPTH]
    state.chosen[depth] = buffer
    state.mark[depth, 0] = state.counter[TRAIL]
    state.mark[depth, 1] = state.counter[POOL]
    state.level[buffer] = depth
    state.counter[DEPTH] = depth + 1
    for section in range(tables.first[buffer], tables.last[buffer]):
        state.rest[section] -= tables.size[buffer]
    _touch(tables, state, order, buffer)
    top = state.head[buffer] + tables.size[buffer]
    for i in range(tables.near_start[buffer], tables.near_start[buffer + 1]):
        other = tables.near[i]
        if state.level[other] < 0 and (state.head[other] < top or state.held[other]):
            _raise(tables, state, order, other, _aligned(top, tables.alignment[other]), depth)


@njit(cache=True)
def _raise(tables: Tables, state: State, order: Order, buffer: int, top: int, depth: int) -> None:
    """A buffer now lies above ``top``, for the decision of level ``depth``."""
    _record(state, buffer)
    state.held[buffer] = False
    state.head[buffer] = max(state.head[buffer], top)
    if state.low[buffer] < top:
        state.low[buffer] = top
        state.why[buffer] = depth
        _touch(tables, state, order, buffer)


@njit(cache=True)
def _latest(conflict: Words) -> int:
    """The largest level of a set, or -1 for the empty set."""
    for word in range(len(conflict) - 1, -1, -1):
        bits = conflict[word]
        if bits != 0:
            bit = 63
            while (bits >> np.uint64(bit)) & ONE == 0:
                bit -= 1
            return word * 64 + bit
    return -1


@njit(cache=True)
def _undo(tables: Tables, state: State, depth: int) -> None:
    """Take back the decisions of level ``depth`` and later."""
    while state.counter[DEPTH] > depth:
        state.counter[DEPTH] -= 1
        buffer = state.chosen[state.counter[DEPTH]]
        state.level[buffer] = -1
        for section in range(tables.first[buffer], tables.last[buffer]):
            state.rest[section] += tables.size[buffer]
    while state.counter[TRAIL] > state.mark[depth, 0]:
        state.counter[TRAIL] -= 1
        row = state.trail[state.counter[TRAIL]]
        buffer = row[0]
        state.head[buffer], state.low[buffer], state.why[buffer] = row[1], row[2], row[3]
        state.held[buffer] = row[4] != 0
    state.counter[POOL] = state.mark[depth, 1]


@njit(cache=True)
def _hold(tables: Tables, state: State, order: Order, buffer: int) -> None:
    """Some unplaced neighbour lies below a buffer; the conflict set says because of what."""
    support = FAR
    for i in range(tables.near_start[buffer], tables.near_start[buffer + 1]):
        other = tables.near[i]
        if state.level[other] < 0:
            support = min(support, state.low[other] + tables.size[other])
    _record(state, buffer)
    state.held[buffer] = True
    least = support if support == FAR else _aligned(support, tables.alignment[buffer])
    if least <= state.low[buffer]:
        return
    _blame_support(tables, state, buffer, support)
    row = state.counter[POOL]
    state.pool[row] = state.conflict
    state.counter[POOL] = row + 1
    state.low[buffer] = least
    state.why[buffer] = -2 - row
    _touch(tables, state, order, buffer)


@njit(cache=True)
def _blame_support(tables: Tables, state: State, buffer: int, support: int) -> None:
    """Add what proves that no unplaced neighbour ends below ``support``."""
    for i in range(tables.near_start[buffer], tables.near_start[buffer + 1]):
        other = tables.near[i]
        if state.level[other] >= 0:
            _blame_level(state, state.level[other])
        elif tables.size[other] < support:
            _blame_low(state, other)


@njit(cache=True)
def _blame_all(state: State) -> None:
    state.conflict[:] = 0
    for level in range(state.counter[DEPTH]):
        _blame_level(state, level)


@njit(cache=True)
def _step(tables: Tables, state: State, order: Order, capacity: int) -> bool:
    """Check, then place one buffer; false when the conflict set is filled instead."""
    if not _consistent(tables, state, order, capacity):
        return False
    buffer = _next(state, order)
    if buffer < 0:
        _blame_all(state)
        return False
    _place(tables, state, order, buffer)
    return True


@njit(cache=True)
def _retreat(tables: Tables, state: State, order: Order) -> bool:
    """Jump back to the latest decision in the conflict set and hold its buffer; false if there is none."""
    depth = _latest(state.conflict)
    if depth < 0:
        return False
    buffer = state.chosen[depth]
    _undo(tables, state, depth)
    state.conflict[depth >> 6] &= ~(ONE << np.uint64(depth & 63))
    _hold(tables, state, order, buffer)
    return True


@njit(cache=True)
def _full(state: State) -> bool:
    trail, pool = state.counter[TRAIL], state.counter[POOL]
    return bool(trail + len(state.head) + 1 >= len(state.trail) or pool + 1 >= len(state.pool))


@njit(cache=True)
def advance(tables: Tables, state: State, order: Order, capacity: int, steps: int) -> int:
    """Search on for at most ``steps`` steps.

    Args:
        tables: the problem.
        state: where the search stands; changed in place.
        order: which buffer goes next; the same in every call on a state.
        capacity: bytes.
        steps: decisions and retreats, together.

    Returns:
        FOUND (the offsets are ``state.head``), DEAD (no packing fits) or LIMIT (call again to go on).
    """
    for _ in range(steps):
        state.counter[STEPS] += 1
        if state.counter[DEPTH] == len(order.rank):
            return FOUND
        if _full(state):
            return LIMIT
        if not _step(tables, state, order, capacity) and not _retreat(tables, state, order):
            return DEAD
    return LIMIT
