"""Decoding on arrays: from the modes of gaps and tails to runs, peak and seconds, in microseconds.

The same as `sequence` and `lower` followed by the simulator, in one numba function; the tests hold
them equal. The order of work: base runs (with repeated ones before them), updates put between, one
pass backwards over all runs that finds each death and sums the live bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from peakfold.plan.schedule.arrays import Bytes, Flags, Floats, Ints
from peakfold.plan.schedule.chains import chain
from peakfold.plan.schedule.frame import DROP, HOLD, KEEP, SINCE, Frame
from peakfold.plan.schedule.kernel import compiled

Modes = npt.NDArray[np.int16]

DONE = -2
FEW = 24


class Code(NamedTuple):
    """The arrays of a frame that decoding reads; see `Frame` and `Tables` for their meaning."""

    base: Ints
    rank: Ints
    need_begin: Ints
    need: Ints
    made_begin: Ints
    made: Ints
    use_begin: Ints
    use_gap: Ints
    gaps: int
    producer: Ints
    nbytes: Bytes
    seconds: Floats
    workspace: Bytes
    way_begin: Ints
    way_output: Ints
    way_operand: Ints
    kept: Flags
    state_begin: Ints
    state: Ints
    pair_new: Ints
    pair_maker: Ints
    pair_head: Ints
    chain_begin: Ints
    chain: Ints
    target_pair: Ints
    target_begin: Ints
    target_maker: Ints
    cone_begin: Ints
    cone: Ints
    late: Ints
    early: bool
    reuse: bool
    resident: int
    capacity: int


class Scratch(NamedTuple):
    """Arrays that decoding writes; ``runs[:length]`` and ``during[:length]`` are its results."""

    base_runs: Ints
    runs: Ints
    during: Bytes
    mark: Ints
    stack: Ints
    found: Ints
    at_hand: Flags
    next_use: Ints
    needed: Flags
    dies: Ints
    copied: Ints
    placed: Ints
    first: Ints
    last_read: Ints
    head: Ints
    link: Ints


class Outcome(NamedTuple):
    """What a vector of modes comes to.

    Attributes:
        length: number of runs; -1 where the limit of seconds was passed, and nothing else is known.
        peak: most bytes at once.
        seconds: of all runs.
        excess: sum over all runs of the bytes above the target.
        at: run at which the peak is reached first.
    """

    length: int
    peak: int
    seconds: float
    excess: float
    at: int


def encode(frame: Frame, updates: str = "early", reuse: bool = True) -> Code:
    """Return the arrays of a frame for decoding."""
    tables = frame.tables
    made = [
        [
            v
            for v in tables.outputs[tables.output_begin[s] : tables.output_begin[s + 1]].tolist()
            if not tables.host_number[v]
        ]
        for s in range(tables.steps)
    ]
    pairs = [
        (old, new)
        for old, new in zip(tables.state_input.tolist(), tables.state_output.tolist(), strict=True)
        if old != new
    ]
    pair_of = {old: i for i, (old, _) in enumerate(pairs)}
    state = [
        [
            pair_of[v]
            for v in tables.operands[tables.operand_begin[s] : tables.operand_begin[s + 1]].tolist()
            if v in pair_of
        ]
        for s in range(tables.steps)
    ]
    makers = [int(tables.producer[new]) for _, new in pairs]
    chains = [chain(tables, old, new) for old, new in pairs]
    heads = [int(tables.producer[links[0]]) if links else -1 for links in chains]
    targets = [target for target in frame.targets if target.old in pair_of]
    return Code(
        base=frame.base,
        rank=frame.rank,
        need_begin=frame.need_begin,
        need=frame.need,
        made_begin=_begins(made),
        made=_flat(made),
        use_begin=frame.use_begin,
        use_gap=frame.use_gap,
        gaps=frame.gaps,
        producer=tables.producer,
        nbytes=tables.nbytes,
        seconds=tables.seconds,
        workspace=tables.workspace,
        way_begin=tables.reuse_begin,
        way_output=tables.reuse_output,
        way_operand=tables.reuse_operand,
        kept=tables.is_output & (tables.producer >= 0),
        state_begin=_begins(state),
        state=_flat(state),
        pair_new=np.array([new for _, new in pairs], np.int32),
        pair_maker=np.array(makers, np.int32),
        pair_head=np.array(heads, np.int32),
        chain_begin=_begins(chains),
        chain=_flat(chains),
        target_pair=np.array([pair_of[target.old] for target in targets], np.int32),
        target_begin=_begins([target.producers for target in targets]),
        target_maker=_flat([target.producers for target in targets]),
        cone_begin=_begins([target.cone for target in targets]),
        cone=_flat([target.cone for target in targets]),
        late=np.array(sorted(np.flatnonzero(frame.late), key=lambda s: int(frame.rank[s])), np.int32),
        early=updates == "early",
        reuse=reuse,
        resident=tables.resident,
        capacity=CAPACITY * tables.steps + 64,
    )


CAPACITY = 24
"""Most runs a step, on average: decoding stops there."""


def scratch(code: Code) -> Scratch:
    """Return fresh arrays for decoding."""
    steps, storages, pairs = len(code.rank), len(code.nbytes), len(code.pair_new)

    def ints(size: int) -> Ints:
        return np.zeros(size, np.int32)

    return Scratch(
        base_runs=ints(code.capacity),
        runs=ints(code.capacity),
        during=np.zeros(code.capacity, np.int64),
        mark=np.full(steps, -1, np.int32),
        stack=ints(steps),
        found=ints(steps),
        at_hand=np.zeros(storages, np.bool_),
        next_use=ints(storages),
        needed=np.zeros(storages, np.bool_),
        dies=ints(storages),
        copied=ints(storages),
        placed=ints(storages),
        first=ints(steps),
        last_read=ints(pairs),
        head=ints(code.capacity + 1),
        link=ints(max(pairs, len(code.target_pair))),
    )


@compiled
def decode(code: Code, scratch: Scratch, modes: Modes, target: float, limit: float) -> Outcome:
    """Return the Outcome of a vector of modes.

    Args:
        code: the graph.
        scratch: where to work; holds the runs and the bytes during each afterwards.
        modes: of each gap and tail; see `frame`.
        target: bytes above which ``excess`` counts.
        limit: seconds at which to stop.
    """
    length, seconds = _base_runs(code, scratch, modes, limit)
    if length < 0:
        return Outcome(-1, 0, seconds, 0.0, 0)
    length = _with_updates(code, scratch, length)
    for i in range(len(code.late)):
        seconds += code.seconds[code.late[i]]
    peak, excess, at = _profile(code, scratch, length, target)
    return Outcome(length, peak, seconds, excess, at)


@compiled
def _base_runs(code: Code, scratch: Scratch, modes: Modes, limit: float) -> tuple[int, float]:
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
def _with_updates(code: Code, scratch: Scratch, length: int) -> int:
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
def _fill(items: Ints, count: int, value: int) -> None:
    for i in range(count):
        items[i] = value


@compiled
def _note(runs: Ints, length: int, state_begin: Ints, state: Ints, first: Ints, last_read: Ints) -> None:
    """Note the first run of each step and the last read of each state input."""
    _fill(first, len(first), -1)
    _fill(last_read, len(last_read), -1)
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
    _note(scratch.base_runs, length, code.state_begin, code.state, first, last_read)
    _fill(head, length + 1, -1)
    for i in range(len(target_pair) - 1, -1, -1):
        at = last_read[target_pair[i]]
        for j in range(target_begin[i], target_begin[i + 1]):
            at = max(at, first[target_maker[j]])
        link[i] = head[at + 1]
        head[at + 1] = i


@compiled
def _place_states(code: Code, scratch: Scratch, length: int) -> int:
    """Find which new values are written in place, and after which runs the others are copied.

    Returns the bytes that live at the end beyond the inputs.
    """
    runs, first, last_read = scratch.runs, scratch.first, scratch.last_read
    head, link, placed, needed = scratch.head, scratch.link, scratch.placed, scratch.needed
    kept, nbytes = code.kept, code.nbytes
    pair_new, pair_maker, pair_head = code.pair_new, code.pair_maker, code.pair_head
    chain_begin, chain_of, producer = code.chain_begin, code.chain, code.producer
    _note(runs, length, code.state_begin, code.state, first, last_read)
    _fill(head, length, -1)
    _fill(placed, len(placed), -1)
    live = 0
    for v in range(len(kept)):
        needed[v] = kept[v]
        if kept[v]:
            live += nbytes[v]
    for i in range(len(pair_new)):
        at = last_read[i]
        new = pair_new[i]
        if pair_head[i] >= 0 and at >= 0 and runs[at] == pair_head[i]:
            for j in range(chain_begin[i], chain_begin[i + 1]):
                placed[chain_of[j]] = first[producer[chain_of[j]]]
                needed[chain_of[j]] = True
            if kept[new]:
                live -= nbytes[new]
        elif pair_maker[i] >= 0:
            at = max(at, first[pair_maker[i]], 0)
            link[i] = head[at]
            head[at] = i
    return live


@compiled
def _profile(code: Code, scratch: Scratch, length: int, target: float) -> tuple[int, float, int]:
    """Walk the runs backwards: deaths, live bytes, peak and excess."""
    runs, during, needed, head, link = (
        scratch.runs,
        scratch.during,
        scratch.needed,
        scratch.head,
        scratch.link,
    )
    dies, copied, placed = scratch.dies, scratch.copied, scratch.placed
    need_begin, need, made_begin, made = code.need_begin, code.need, code.made_begin, code.made
    nbytes, workspace, pair_new = code.nbytes, code.workspace, code.pair_new
    way_begin, way_output, way_operand, reuse = code.way_begin, code.way_output, code.way_operand, code.reuse
    live = code.resident + _place_states(code, scratch, length)
    _fill(dies, len(dies), -1)
    _fill(copied, len(copied), -1)
    peak = code.resident
    peak_at = 0
    excess = 0.0
    for at in range(length - 1, -1, -1):
        step = runs[at]
        freed = 0
        i = head[at]
        while i >= 0:
            v = pair_new[i]
            copied[v] = at
            if not needed[v]:
                freed += nbytes[v]
                needed[v] = True
            i = link[i]
        for j in range(need_begin[step], need_begin[step + 1]):
            v = need[j]
            if not needed[v]:
                freed += nbytes[v]
                needed[v] = True
                dies[v] = at
        taken = 0
        for j in range(made_begin[step], made_begin[step + 1]):
            v = made[j]
            if not needed[v]:
                freed += nbytes[v]
            needed[v] = False
            if placed[v] != at:
                taken += nbytes[v]
        saved = 0
        if reuse:
            for j in range(way_begin[step], way_begin[step + 1]):
                new, old = way_output[j], way_operand[j]
                if placed[new] == at:
                    break
                if dies[old] == at and copied[old] != at:
                    saved = nbytes[new]
                    break
        now = live + freed - saved + workspace[step]
        live += freed - taken
        during[at] = now
        if now >= peak:
            peak = now
            peak_at = at
        if now > target:
            excess += now - target
    return peak, excess, peak_at


def _begins(rows: Sequence[Sequence[int]]) -> Ints:
    return np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)


def _flat(rows: Sequence[Sequence[int]]) -> Ints:
    return np.array([item for row in rows for item in row], np.int32)
