"""The moves of annealing: a few modes changed at random."""

import numpy as np
import numpy.typing as npt

from peakfold.plan.schedule.arrays import Bytes
from peakfold.plan.schedule.changes import pin, set_mode
from peakfold.plan.schedule.code import Code, Modes
from peakfold.plan.schedule.frame import DROP, HOLD, KEEP, SINCE
from peakfold.plan.schedule.kernel import compiled
from peakfold.plan.schedule.slots import Slots

Random = npt.NDArray[np.uint64]


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
def propose(
    code: Code,
    slots: Slots,
    modes: Modes,
    state: Random,
    hot: Bytes,
    hots: int,
    feasible: bool,
    changed: Bytes,
) -> int:
    """Change modes at random; return how many.

    Above the target half of the proposals are of whole stretches: to get near the least bytes a stretch
    must be dropped as one, for nothing is gained while some of it is kept.
    """
    if not feasible and draw(state, 2) == 0:
        return _stretch(slots, modes, state, changed, 0)
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
        count = set_mode(modes, changed, count, slot, draw(state, 3))
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
        return set_mode(modes, changed, count, slot, HOLD)
    if kind < 7:
        return set_mode(modes, changed, count, slot, _since(slots, state, slot))
    return set_mode(modes, changed, count, slot, DROP)


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
            return set_mode(modes, changed, count, slot, mode)
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
                count = set_mode(modes, changed, count, slot, KEEP)
                return set_mode(modes, changed, count, other, HOLD if modes[other] == KEEP else KEEP)
    return count


@compiled
def _stretch(slots: Slots, modes: Modes, state: Random, changed: Bytes, count: int) -> int:
    """Give one mode to all that a stretch of steps makes and steps some way behind it read.

    The mode is to keep it, to hold it once it was computed again, or to hold it from the first of these
    readers on, so that a pass over it on the way to others does not stay. What is read right behind the
    stretch is left alone: its own value would be computed again at once.
    """
    slot = slots.choices[draw(state, len(slots.choices))]
    low = slots.begin[slot]
    high = low + (1 << (2 + draw(state, 6)))
    far = high + (1 << (1 + draw(state, 8)))
    first = slots.end[slot]
    for other in slots.choices:
        if low <= slots.begin[other] < high and far <= slots.end[other] and other < slots.gaps:
            first = min(first, slots.end[other])
    kind = draw(state, 4)
    mode = SINCE + first if kind >= 2 else kind
    least = slots.nbytes[slot] // (1 << (2 * draw(state, 4)))
    for other in slots.choices:
        inside = low <= slots.begin[other] < high and far <= slots.end[other]
        if inside and other < slots.gaps and slots.nbytes[other] >= least:
            count = set_mode(modes, changed, count, other, mode)
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
        count = set_mode(modes, changed, count, slots.member[i], mode)
    return count
