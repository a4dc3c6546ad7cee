"""Decoding, its first half: from modes to runs, with repeated ones and updates put between."""

from peakfold.plan.schedule.arrays import Flags, Ints
from peakfold.plan.schedule.code import Code, Modes, Scratch
from peakfold.plan.schedule.frame import DROP, HOLD, KEEP, SINCE
from peakfold.plan.schedule.kernel import compiled

DONE = -2
FEW = 24


@compiled
def base_runs(code: Code, scratch: Scratch, modes: Modes, limit: float) -> tuple[int, float]:
    """Write the runs of all base steps; return how many and their seconds, -1 where a limit was passed."""
    base, rank, producer, seconds_of = code.base, code.rank, code.producer, code.seconds
    need_begin, need = code.need_begin, code.need
    made_begin, made = code.made_begin, code.made
    use_begin, use_gap, gaps = code.use_begin, code.use_gap, code.gaps
    mark, stack, found = scratch.mark, scratch.stack, scratch.found
    at_hand, next_use, runs = scratch.at_hand, scratch.next_use, scratch.base_runs
    room = code.capacity - len(code.late)
    for step in range(len(mark)):
        mark[step] = -1
    for v in range(len(at_hand)):
        at_hand[v] = False
        next_use[v] = use_begin[v]
    length = 0
    seconds = 0.0
    for place in range(len(base)):
        step = base[place]
        lacks = False
        for j in range(need_begin[step], need_begin[step + 1]):
            lacks |= not at_hand[need[j]]
        if lacks:
            again = _missing(need_begin, need, producer, at_hand, mark, stack, found, step, place)
            if length + again >= room:
                return -1, seconds
            _sort_by_rank(base, rank, mark, found, again, place)
            for i in range(again):
                maker = found[i]
                runs[length] = maker
                length += 1
                seconds += seconds_of[maker]
                for j in range(made_begin[maker], made_begin[maker + 1]):
                    v = made[j]
                    mode = _mode(use_begin, use_gap, gaps, producer, next_use, modes, v)
                    at_hand[v] = mode <= HOLD or (mode > DROP and place >= mode - SINCE)
        runs[length] = step
        length += 1
        seconds += seconds_of[step]
        if seconds > limit or length >= room:
            return -1, seconds
        for j in range(need_begin[step], need_begin[step + 1]):
            v = need[j]
            next_use[v] += 1
            at_hand[v] = _mode(use_begin, use_gap, gaps, producer, next_use, modes, v) == KEEP
        for j in range(made_begin[step], made_begin[step + 1]):
            v = made[j]
            at_hand[v] = _mode(use_begin, use_gap, gaps, producer, next_use, modes, v) == KEEP
    return length, seconds


@compiled
def _mode(
    use_begin: Ints, use_gap: Ints, gaps: int, producer: Ints, next_use: Ints, modes: Modes, v: int
) -> int:
    """The mode of the gap or tail that a storage is in."""
    use = next_use[v]
    if use < use_begin[v + 1]:
        return int(modes[use_gap[use]])
    return int(modes[gaps + producer[v]])


@compiled
def _missing(
    need_begin: Ints,
    need: Ints,
    producer: Ints,
    at_hand: Flags,
    mark: Ints,
    stack: Ints,
    found: Ints,
    step: int,
    stamp: int,
) -> int:
    """Collect in ``found`` the steps to run again before ``step``; return how many."""
    count = 0
    depth = 0
    item = step
    while True:
        for j in range(need_begin[item], need_begin[item + 1]):
            v = need[j]
            if not at_hand[v]:
                maker = producer[v]
                if mark[maker] != stamp:
                    mark[maker] = stamp
                    stack[depth] = maker
                    depth += 1
                    found[count] = maker
                    count += 1
        if depth == 0:
            return count
        depth -= 1
        item = stack[depth]


@compiled
def _sort_by_rank(base: Ints, rank: Ints, mark: Ints, found: Ints, count: int, stamp: int) -> None:
    """Put the marked steps in base order: by insertion where they are few, by a scan otherwise."""
    if count > FEW:
        place = rank[found[0]]
        for i in range(1, count):
            place = min(place, rank[found[i]])
        filled = 0
        while filled < count:
            step = base[place]
            if mark[step] == stamp:
                found[filled] = step
                filled += 1
            place += 1
        return
    for i in range(1, count):
        step = found[i]
        j = i - 1
        while j >= 0 and rank[found[j]] > rank[step]:
            found[j + 1] = found[j]
            j -= 1
        found[j + 1] = step


@compiled
def with_updates(code: Code, scratch: Scratch, length: int) -> int:
    """Copy the base runs to ``runs`` with the update cones between them; return how many."""
    base_runs, runs, mark, late = scratch.base_runs, scratch.runs, scratch.mark, code.late
    head, link, cone_begin, cone = scratch.head, scratch.link, code.cone_begin, code.cone
    for i in range(len(late)):
        mark[late[i]] = -1
    early = code.early and len(code.target_pair) > 0
    if early:
        _ready(code, scratch, length)
    out = 0
    for at in range(-1, length):
        if at >= 0:
            runs[out] = base_runs[at]
            out += 1
        i = head[at + 1] if early else -1
        while i >= 0:
            for j in range(cone_begin[i], cone_begin[i + 1]):
                step = cone[j]
                if mark[step] != DONE:
                    mark[step] = DONE
                    runs[out] = step
                    out += 1
            i = link[i]
    for i in range(len(late)):
        step = late[i]
        if mark[step] != DONE:
            runs[out] = step
            out += 1
    return out


@compiled
def fill(items: Ints, count: int, value: int) -> None:
    """Set the first ``count`` items to a value."""
    for i in range(count):
        items[i] = value


@compiled
def note_reads(runs: Ints, length: int, state_begin: Ints, state: Ints, first: Ints, last_read: Ints) -> None:
    """Note the first run of each step and the last read of each state input."""
    fill(first, len(first), -1)
    fill(last_read, len(last_read), -1)
    for at in range(length):
        step = runs[at]
        if first[step] < 0:
            first[step] = at
        for j in range(state_begin[step], state_begin[step + 1]):
            last_read[state[j]] = at


@compiled
def _ready(code: Code, scratch: Scratch, length: int) -> None:
    """List in ``head`` and ``link``, for each run, the cones that are ready after it."""
    first, last_read, head, link = scratch.first, scratch.last_read, scratch.head, scratch.link
    target_pair, target_begin, target_maker = code.target_pair, code.target_begin, code.target_maker
    note_reads(scratch.base_runs, length, code.state_begin, code.state, first, last_read)
    fill(head, length + 1, -1)
    for i in range(len(target_pair) - 1, -1, -1):
        at = last_read[target_pair[i]]
        for j in range(target_begin[i], target_begin[i + 1]):
            at = max(at, first[target_maker[j]])
        link[i] = head[at + 1]
        head[at + 1] = i
