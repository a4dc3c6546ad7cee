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
dead sections counts, which of the decisions that raised a buffer is blamed, and how far a conflict reaches
is the *way* of the search: no way is best for every problem, so that the exact solver takes turns.

The idea of canonical solutions and of checking sections is MiniMalloc's (Moffitt, ASPLOS 2023); holding a
buffer instead of ordering all placements by offset, the conflict sets and the watched buffers are ours.

What runs for each neighbour or section takes arrays, not the state, which a call would copy.
"""

import numpy as np
from numba import njit

from peakfold.plan.memory.tables import (
    BACKWARD,
    DEAD,
    DEPTH,
    FAR,
    FOUND,
    FROM,
    LIMIT,
    ONE,
    POOL,
    QUEUE,
    STEPS,
    TO,
    TRAIL,
    WIDE,
    Ints,
    Order,
    State,
    Tables,
    Words,
)

FULL = ~np.uint64(0)


@njit(cache=True)
def _aligned(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) & -alignment


@njit(cache=True)
def _touch(queue: Ints, counter: Ints, first: int, last: int, way: int) -> None:
    """Queue sections, as ranges beside those in the queue; the last queued is checked first."""
    row = counter[QUEUE]
    if row == 0:
        counter[FROM], counter[TO] = last, last
    before, after = counter[FROM], counter[TO]
    for side in range(2):
        right = (side == 0) == (way == BACKWARD)
        begin, end = (max(first, after), last) if right else (first, min(last, before))
        if begin < end:
            queue[row, 0], queue[row, 1] = begin, end
            row += 1
    counter[FROM], counter[TO], counter[QUEUE] = min(first, before), max(last, after), row


@njit(cache=True)
def _pop(queue: Ints, counter: Ints, way: int) -> int:
    """The section to check next, taken from the queue."""
    row = counter[QUEUE] - 1
    if way == BACKWARD:
        section = queue[row, 0]
        queue[row, 0] += 1
    else:
        section = queue[row, 1] - 1
        queue[row, 1] = section
    if queue[row, 0] == queue[row, 1]:
        counter[QUEUE] = row
    return int(section)


@njit(cache=True)
def _record(state: State, buffer: int) -> None:
    """Remember what a buffer is now, to undo a change."""
    row = state.counter[TRAIL]
    state.trail[row, 0] = buffer
    state.trail[row, 1] = state.head[buffer]
    state.trail[row, 2] = state.low[buffer]
    state.trail[row, 3] = state.why[buffer]
    state.trail[row, 4] = state.held[buffer]
    state.trail[row, 5] = state.past[buffer]
    state.past[buffer] = row
    state.counter[TRAIL] = row + 1


@njit(cache=True)
def _blame_level(state: State, level: int) -> None:
    state.conflict[level >> 6] |= ONE << np.uint64(level & 63)


@njit(cache=True)
def _reason(why: Ints, past: Ints, trail: Ints, buffer: int, need: int) -> int:
    """What first proved that the offset of a buffer is ``need`` or more."""
    found, row = why[buffer], past[buffer]
    while row >= 0 and trail[row, 2] >= need:
        found, row = trail[row, 3], trail[row, 5]
    return int(found)


@njit(cache=True)
def _blame(conflict: Words, pool: Words, why: int) -> None:
    """Add a reason to the conflict set."""
    if why >= 0:
        conflict[why >> 6] |= ONE << np.uint64(why & 63)
    elif why < -1:
        for word in range(len(conflict)):
            conflict[word] |= pool[-2 - why, word]


@njit(cache=True)
def _can_begin(tables: Tables, state: State, section: int, room: int) -> bool:
    """Whether some unplaced buffer can be the lowest one left in a section; it is watched from now on."""
    for i in range(tables.member_start[section], tables.member_start[section + 1]):
        buffer = tables.member[i]
        if state.level[buffer] < 0 and state.low[buffer] <= room:
            state.watch[section] = buffer
            return True
    return False


@njit(cache=True)
def _blame_section(tables: Tables, state: State, section: int, need: int, latest: int) -> bool:
    """The conflict set is what proves where unplaced buffers lie; false if it goes beyond ``latest``."""
    conflict, level, pool = state.conflict, state.level, state.pool
    why, past, trail = state.why, state.past, state.trail
    conflict[:] = 0
    state.heat[section] += 1
    for i in range(tables.member_start[section], tables.member_start[section + 1]):
        if level[tables.member[i]] >= 0:
            continue
        reason = _reason(why, past, trail, tables.member[i], need)
        if reason > latest:
            return False
        _blame(conflict, pool, reason)
        if reason < -1 and _beyond(conflict, latest):
            return False
    return True


@njit(cache=True)
def _beyond(conflict: Words, latest: int) -> bool:
    """Whether a level after ``latest`` is in a set."""
    word = latest >> 6
    return bool(conflict[word] >> np.uint64(latest & 63) > ONE or np.any(conflict[word + 1 :]))


@njit(cache=True)
def _blame_placed(tables: Tables, state: State, section: int) -> None:
    """Add what is placed in a section."""
    for i in range(tables.member_start[section], tables.member_start[section + 1]):
        if state.level[tables.member[i]] >= 0:
            _blame_level(state, state.level[tables.member[i]])


@njit(cache=True)
def _consistent(tables: Tables, state: State, order: Order, capacity: int) -> bool:
    """Check the sections that changed; where one is dead, fill the conflict set."""
    watch, rest, level, low = state.watch, state.rest, state.level, state.low
    latest = -1
    while state.counter[QUEUE] > 0:
        section = _pop(state.queue, state.counter, order.way)
        watched, room = watch[section], capacity - rest[section]
        if rest[section] == 0 or (level[watched] < 0 and low[watched] <= room):
            continue
        if _can_begin(tables, state, section, room):
            continue
        need = room + 1 if order.early else FAR
        if order.way != WIDE:
            _blame_section(tables, state, section, need, state.counter[DEPTH])
            _blame_placed(tables, state, section)
            state.counter[QUEUE] = 0
            return False
        if latest < 0:
            latest = state.counter[DEPTH]
            state.best[:] = FULL
        if _blame_section(tables, state, section, need, latest) and _earlier(state.conflict, state.best):
            state.best[:] = state.conflict
            latest = max(_latest(state.best), 0)
    if latest >= 0:
        state.conflict[:] = state.best
    return latest < 0


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
    level, held, floors, lead, ranks = state.level, state.held, state.head, order.lead, order.rank
    best, floor, place = -1, FAR, FAR
    for buffer in range(len(ranks)):
        if level[buffer] >= 0 or held[buffer]:
            continue
        head, rank = floors[buffer] - lead[buffer], ranks[buffer]
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
    _touch(state.queue, state.counter, tables.first[buffer], tables.last[buffer], order.way)
    _raise_neighbours(tables, state, order, buffer, depth)


@njit(cache=True)
def _raise_neighbours(tables: Tables, state: State, order: Order, buffer: int, depth: int) -> None:
    """What is unplaced beside a buffer now lies above its top, for the decision of level ``depth``."""
    head, low, why, past, held = state.head, state.low, state.why, state.past, state.held
    level, trail, counter, queue = state.level, state.trail, state.counter, state.queue
    top, row = head[buffer] + tables.size[buffer], counter[TRAIL]
    begin, end = counter[FROM], counter[TO]
    for i in range(tables.near_start[buffer], tables.near_start[buffer + 1]):
        other = tables.near[i]
        if level[other] >= 0 or (head[other] >= top and not held[other]):
            continue
        least = _aligned(top, tables.alignment[other])
        trail[row, 0], trail[row, 1], trail[row, 2] = other, head[other], low[other]
        trail[row, 3], trail[row, 4], trail[row, 5] = why[other], held[other], past[other]
        past[other] = row
        row += 1
        held[other] = False
        head[other] = max(head[other], least)
        if low[other] >= least:
            continue
        low[other], why[other] = least, depth
        if tables.first[other] < begin or tables.last[other] > end:
            _touch(queue, counter, tables.first[other], tables.last[other], order.way)
            begin, end = counter[FROM], counter[TO]
    counter[TRAIL] = row


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
        state.held[buffer], state.past[buffer] = row[4] != 0, row[5]
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
    _blame_support(tables, state, buffer, support, order.early)
    row = state.counter[POOL]
    state.pool[row] = state.conflict
    state.counter[POOL] = row + 1
    state.low[buffer] = least
    state.why[buffer] = -2 - row
    _touch(state.queue, state.counter, tables.first[buffer], tables.last[buffer], order.way)


@njit(cache=True)
def _blame_support(tables: Tables, state: State, buffer: int, support: int, early: bool) -> None:
    """Add what proves that no unplaced neighbour ends below ``support``."""
    for i in range(tables.near_start[buffer], tables.near_start[buffer + 1]):
        other = tables.near[i]
        if state.level[other] >= 0:
            _blame_level(state, state.level[other])
        elif tables.size[other] < support:
            need = support - tables.size[other] if early else FAR
            _blame(state.conflict, state.pool, _reason(state.why, state.past, state.trail, other, need))


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
