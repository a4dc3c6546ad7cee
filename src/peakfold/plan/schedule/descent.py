"""Greedy descent: drop what saves most, until the peak is within a target. Every plan is decoded exactly."""

import numpy as np

from peakfold.plan.schedule.archive import Archive, note
from peakfold.plan.schedule.arrays import Bytes, Floats
from peakfold.plan.schedule.changes import pin, undo
from peakfold.plan.schedule.code import Code, Modes, Outcome, Scratch
from peakfold.plan.schedule.decode import decode
from peakfold.plan.schedule.frame import DROP, HOLD, KEEP
from peakfold.plan.schedule.kernel import compiled
from peakfold.plan.schedule.slots import Slots

BEST_OF = 48
"""Choices that the descent decodes, at most, before it takes one."""
ENOUGH = 8
"""Choices after which it takes the best, if one of them gains."""


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
    """Bytes times hot runs that dropping each choice would save, per second of its chain."""
    found = np.zeros(len(slots.choices))
    for i in range(len(slots.choices)):
        slot = slots.choices[i]
        if modes[slot] >= DROP or (slot >= slots.gaps and modes[slot] != KEEP):
            continue
        covered = hot[slots.end[slot]] - hot[slots.begin[slot] + 1]
        cost = slots.again[slot] + 1e-7
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
        for looked in range(BEST_OF):
            choice = _largest(estimate)
            if estimate[choice] <= 0 or (looked >= ENOUGH and best_slot >= 0):
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
