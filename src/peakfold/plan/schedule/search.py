"""Search over vectors of modes: a greedy descent and annealing, with an archive of the whole front.

Everything here is a numba function over `Code`, `Slots` and `Archive`; `planner` drives it. Each
candidate is decoded exactly. The archive keeps the fastest plan found below each of its edges of
bytes, so that whatever one budget's search meets serves all the others.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from peakfold.plan.schedule.arrays import Bytes, Floats
from peakfold.plan.schedule.decode import Code, Modes, Outcome, Scratch, decode
from peakfold.plan.schedule.frame import DROP, HOLD, KEEP, SINCE
from peakfold.plan.schedule.kernel import compiled
from peakfold.plan.schedule.slots import Slots

Random = npt.NDArray[np.uint64]

BEST_OF = 48
"""Choices that the descent decodes before it takes one."""
SPREAD = 4.0
"""Weight of the mean excess of all runs against the excess of the peak."""
SLACK = 1e-3
"""Part of the target that any excess counts for at least."""


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
def _copy(source: Modes, target: Modes) -> None:
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
            _copy(modes, kept.modes[row])


@compiled
def draw(state: Random, below: int) -> int:
    """Return a number in 0 .. below - 1 from a splitmix64 stream."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return int((z >> np.uint64(11)) % np.uint64(below))


@compiled
def _hot_places(code: Code, work: Scratch, length: int, target: float) -> Bytes:
    """Count, before each base place, the runs whose bytes are above the target."""
    hot = np.zeros(len(code.base) + 2, np.int64)
    base, runs, during = code.base, work.runs, work.during
    place = 0
    for at in range(length):
        if place < len(base) and runs[at] == base[place]:
            place += 1
        if during[at] > target:
            hot[place] += 1
    for i in range(1, len(hot)):
        hot[i] += hot[i - 1]
    return hot


@compiled
def _estimates(code: Code, slots: Slots, modes: Modes, hot: Bytes) -> Floats:
    """Bytes times hot runs that dropping each choice would save, per second of its step."""
    found = np.zeros(len(slots.choices))
    for i in range(len(slots.choices)):
        slot = slots.choices[i]
        if modes[slot] >= DROP or (slot >= slots.gaps and modes[slot] != KEEP):
            continue
        covered = hot[slots.end[slot]] - hot[slots.begin[slot] + 1]
        cost = code.seconds[slots.step[slot]] + 1e-7
        found[i] = slots.nbytes[slot] * covered / cost
        if modes[slot] == HOLD:
            found[i] *= 0.2
    return found


@compiled
def _largest(items: Floats) -> int:
    best = 0
    for i in range(1, len(items)):
        if items[i] > items[best]:
            best = i
    return best


@compiled
def pin(code: Code, slots: Slots, modes: Modes, slot: int, changed: Bytes, count: int) -> int:
    """Keep the operands of a slot's step to their last reader; return how many slots changed."""
    step = slots.step[slot]
    for j in range(code.need_begin[step], code.need_begin[step + 1]):
        tail = slots.gaps + code.producer[code.need[j]]
        if slots.open[tail] and modes[tail] != KEEP:
            changed[count, 0] = tail
            changed[count, 1] = modes[tail]
            modes[tail] = KEEP
            count += 1
    return count


@compiled
def undo(modes: Modes, changed: Bytes, count: int) -> None:
    """Take changes back."""
    for i in range(count - 1, -1, -1):
        modes[changed[i, 0]] = changed[i, 1]


@compiled
def descend(
    code: Code,
    work: Scratch,
    slots: Slots,
    kept: Archive,
    modes: Modes,
    target: int,
    limit: float,
    rounds: int,
) -> Outcome:
    """Drop what saves most excess bytes per second until the peak is within the target.

    Returns the last Outcome; ``modes`` holds its decisions.
    """
    now = decode(code, work, modes, target, limit)
    note(kept, modes, now)
    changed = np.zeros((len(modes) + 1, 2), np.int64)
    for _ in range(rounds):
        if now.length < 0 or now.excess <= 0 or len(slots.choices) == 0:
            break
        estimate = _estimates(code, slots, modes, _hot_places(code, work, now.length, target))
        best_gain = 0.0
        best_slot = -1
        best_pins = False
        for _ in range(BEST_OF):
            choice = _largest(estimate)
            if estimate[choice] <= 0:
                break
            estimate[choice] = 0.0
            slot = slots.choices[choice]
            for pins in range(2):
                changed[0, 0] = slot
                changed[0, 1] = modes[slot]
                count = 1
                if pins:
                    count = pin(code, slots, modes, slot, changed, count)
                    if count == 1:
                        continue
                modes[slot] += 1
                trial = decode(code, work, modes, target, limit)
                note(kept, modes, trial)
                undo(modes, changed, count)
                if trial.length < 0 or trial.excess >= now.excess:
                    continue
                gain = (now.excess - trial.excess) / max(trial.seconds - now.seconds, 1e-7)
                if gain > best_gain:
                    best_gain, best_slot, best_pins = gain, slot, pins == 1
        if best_slot < 0:
            break
        if best_pins:
            pin(code, slots, modes, best_slot, changed, 0)
        modes[best_slot] += 1
        now = decode(code, work, modes, target, limit)
    return now


@compiled
def _live_slots(code: Code, work: Scratch, slots: Slots, length: int, at: int, out: Bytes) -> int:
    """List the open slots of what lives during a run and is not read there; return how many."""
    needed, runs, base = work.needed, work.runs, code.base
    place = 0
    for i in range(at + 1):
        if place < len(base) and runs[i] == base[place]:
            place += 1
    for v in range(len(needed)):
        needed[v] = False
    for i in range(length - 1, at, -1):
        step = runs[i]
        for j in range(code.need_begin[step], code.need_begin[step + 1]):
            needed[code.need[j]] = True
        for j in range(code.made_begin[step], code.made_begin[step + 1]):
            needed[code.made[j]] = False
    count = 0
    for v in range(len(needed)):
        if not needed[v]:
            continue
        slot = slots.gaps + code.producer[v]
        for use in range(code.use_begin[v], code.use_begin[v + 1]):
            gap = code.use_gap[use]
            if slots.end[gap] >= place:
                slot = gap
                break
        if slots.open[slot] and (count == 0 or out[count - 1] != slot):
            out[count] = slot
            count += 1
    return count


@compiled
def _set(modes: Modes, changed: Bytes, count: int, slot: int, mode: int) -> int:
    if modes[slot] == mode:
        return count
    changed[count, 0] = slot
    changed[count, 1] = modes[slot]
    modes[slot] = mode
    return count + 1


@compiled
def _propose(
    code: Code,
    slots: Slots,
    modes: Modes,
    state: Random,
    hot: Bytes,
    hots: int,
    feasible: bool,
    changed: Bytes,
) -> int:
    """Change a few modes at random; return how many."""
    kind = draw(state, 100)
    count = 0
    if feasible:
        kind = kind // 2 + 50 if kind < 50 else kind
    if kind < 45 and hots > 0:
        slot = hot[draw(state, hots)]
        other = hot[draw(state, hots)]
        if slots.nbytes[other] > slots.nbytes[slot]:
            slot = other
        count = _lower(slots, modes, state, changed, count, slot)
        if draw(state, 4) == 0:
            count = pin(code, slots, modes, slot, changed, count)
        if draw(state, 4) == 0:
            count = _raise(slots, modes, state, changed, count)
    elif kind < 75:
        count = _raise(slots, modes, state, changed, count)
        if draw(state, 3) == 0 and hots > 0:
            count = _lower(slots, modes, state, changed, count, hot[draw(state, hots)])
    elif kind < 82:
        slot = slots.choices[draw(state, len(slots.choices))]
        count = _set(modes, changed, count, slot, draw(state, 3))
    elif kind < 86:
        count = _stretch(slots, modes, state, changed, count)
    elif kind < 92:
        count = _shift(code, slots, modes, state, changed, count)
    else:
        count = _alike(slots, modes, state, changed, count)
    return count


@compiled
def _lower(slots: Slots, modes: Modes, state: Random, changed: Bytes, count: int, slot: int) -> int:
    """Let a slot hold less."""
    if modes[slot] == DROP:
        return count
    kind = draw(state, 8)
    if kind < 5 and modes[slot] == KEEP:
        return _set(modes, changed, count, slot, HOLD)
    if kind < 7:
        return _set(modes, changed, count, slot, _since(slots, state, slot))
    return _set(modes, changed, count, slot, DROP)


@compiled
def _since(slots: Slots, state: Random, slot: int) -> int:
    """A mode that holds from a place shortly before the end of a slot's gap."""
    low, high = slots.begin[slot], slots.end[slot]
    place = max(low, high - 1 - draw(state, 1 << (2 + draw(state, 7))))
    return int(SINCE + place)


@compiled
def _raise(slots: Slots, modes: Modes, state: Random, changed: Bytes, count: int) -> int:
    """Let a slot that is dropped hold more."""
    for _ in range(24):
        slot = slots.choices[draw(state, len(slots.choices))]
        if modes[slot] != KEEP and (slot < slots.gaps or draw(state, 8) == 0):
            mode = HOLD if modes[slot] >= DROP and draw(state, 2) else KEEP
            return _set(modes, changed, count, slot, mode)
    return count


@compiled
def _shift(code: Code, slots: Slots, modes: Modes, state: Random, changed: Bytes, count: int) -> int:
    """Keep a dropped value and drop one that it is made of, or the other way round."""
    for _ in range(24):
        slot = slots.choices[draw(state, len(slots.choices))]
        if modes[slot] == KEEP:
            continue
        step = slots.step[slot]
        low, high = code.need_begin[step], code.need_begin[step + 1]
        if low == high:
            continue
        v = code.need[low + draw(state, high - low)]
        for use in range(code.use_begin[v], code.use_begin[v + 1] + 1):
            other = code.use_gap[use] if use < code.use_begin[v + 1] else slots.gaps + code.producer[v]
            if slots.open[other] and slots.begin[other] <= slots.end[slot] <= slots.end[other]:
                count = _set(modes, changed, count, slot, KEEP)
                return _set(modes, changed, count, other, HOLD if modes[other] == KEEP else KEEP)
    return count


@compiled
def _stretch(slots: Slots, modes: Modes, state: Random, changed: Bytes, count: int) -> int:
    """Give one mode to all that a stretch of steps makes and later ones read.

    The mode is to keep it, to hold it once it was computed again, or to hold it from the first of its
    readers behind the stretch on, so that a pass over it on the way to others does not stay.
    """
    slot = slots.choices[draw(state, len(slots.choices))]
    low = slots.begin[slot]
    high = low + (1 << (2 + draw(state, 6)))
    first = slots.end[slot]
    for other in slots.choices:
        if low <= slots.begin[other] < high and high <= slots.end[other] and other < slots.gaps:
            first = min(first, slots.end[other])
    kind = draw(state, 4)
    mode = SINCE + first if kind >= 2 else kind
    least = slots.nbytes[slot] // (1 << (2 * draw(state, 4)))
    for other in slots.choices:
        inside = low <= slots.begin[other] < high and high <= slots.end[other]
        if inside and other < slots.gaps and slots.nbytes[other] >= least:
            count = _set(modes, changed, count, other, mode)
    return count


@compiled
def _alike(slots: Slots, modes: Modes, state: Random, changed: Bytes, count: int) -> int:
    """Give one mode to a stretch of slots that do the same in different layers."""
    slot = slots.choices[draw(state, len(slots.choices))]
    group = slots.class_of[slot]
    low, high = slots.member_begin[group], slots.member_begin[group + 1]
    first = low + draw(state, high - low)
    last = low + draw(state, high - low)
    kind = draw(state, 4)
    for i in range(min(first, last), max(first, last) + 1):
        mode = kind if kind <= DROP else _since(slots, state, slots.member[i])
        count = _set(modes, changed, count, slots.member[i], mode)
    return count


@compiled
def cost_of(outcome: Outcome, target: float, weight: float, slack: float) -> float:
    """Seconds, and what is above the target made comparable with them; any of it counts ``slack`` bytes."""
    if outcome.excess <= 0:
        return outcome.seconds
    over = outcome.peak - target + SPREAD * outcome.excess / max(outcome.length, 1)
    return outcome.seconds + weight * (over + slack)


@compiled
def anneal(
    code: Code,
    work: Scratch,
    slots: Slots,
    kept: Archive,
    modes: Modes,
    target: int,
    limit: float,
    weight: float,
    hottest: float,
    coldest: float,
    rounds: int,
    state: Random,
) -> Outcome:
    """Simulated annealing of ``modes`` towards the fastest plan within a target.

    ``weight`` is the seconds that a byte above the target counts for, ``hottest`` and ``coldest`` the
    temperatures at the start and the end in seconds, ``limit`` the most seconds of a plan, ``rounds`` the
    number of proposals and ``state`` the random stream. Returns the Outcome of the best plan met;
    ``modes`` holds it.
    """
    changed = np.zeros((4 * len(modes) + 8, 2), np.int64)
    hot = np.zeros(len(work.needed) + 1, np.int64)
    slack = SLACK * target
    now = decode(code, work, modes, target, limit)
    note(kept, modes, now)
    if now.length < 0 or len(slots.choices) == 0:
        return now
    hots = _live_slots(code, work, slots, now.length, now.at, hot)
    cost = cost_of(now, target, weight, slack)
    best, best_cost, best_modes = now, cost, modes.copy()
    cooling = (coldest / hottest) ** (1.0 / max(rounds, 1))
    heat = hottest
    for _ in range(rounds):
        heat *= cooling
        count = _propose(code, slots, modes, state, hot, hots, now.excess <= 0, changed)
        if count == 0:
            continue
        bar = cost - heat * np.log((draw(state, 1 << 30) + 1.0) / (1 << 30))
        trial = decode(code, work, modes, target, min(limit, bar))
        note(kept, modes, trial)
        trial_cost = cost_of(trial, target, weight, slack)
        if trial.length < 0 or trial_cost > bar:
            undo(modes, changed, count)
            continue
        now, cost = trial, trial_cost
        hots = _live_slots(code, work, slots, now.length, now.at, hot)
        if cost < best_cost:
            best, best_cost = now, cost
            _copy(modes, best_modes)
    _copy(best_modes, modes)
    return best
