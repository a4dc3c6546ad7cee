"""XLA's greedy rematerialization: walk the schedule; over the limit, compute the cheapest value again.

OpenXLA, ``HloRematerialization``: at the first step whose bytes exceed the limit, the live value of the least
cost per byte saved, not used there and used later, is dropped and computed again right before its next use.
"""

import numpy as np

from peakfold.plan.literature.subject import Baseline, Subject, best
from peakfold.plan.schedule.arrays import Floats, Ints
from peakfold.plan.schedule.code import Modes, encode, scratch
from peakfold.plan.schedule.decode import decode
from peakfold.plan.schedule.frame import HOLD, KEEP
from peakfold.plan.schedule.slots import Slots, slots


def xla(subject: Subject, memory: int) -> Baseline:
    """Return the greedy plan for a budget in bytes."""
    code, choices = encode(subject.frame), slots(subject.frame)
    work = scratch(code)
    modes = np.array(subject.kept(), np.int16)
    tried = modes.copy()
    while True:
        now = decode(code, work, tried, memory, np.inf)
        if now.length >= 0 and now.excess > 0:
            modes = tried
        if now.length < 0 or now.excess <= 0:
            break
        place = _place(subject, work.runs[: now.length], int(np.argmax(work.during[: now.length] > memory)))
        slot = _cheapest(choices, tried, place, code.seconds)
        if slot < 0:
            break
        tried = tried.copy()
        tried[slot] = HOLD
    ends = [modes.tolist()] if now.length < 0 else [modes.tolist(), tried.tolist()]
    return best((subject.from_modes("xla", one) for one in ends), memory)


def _place(subject: Subject, runs: Ints, at: int) -> int:
    """Return how many base steps had their first run up to a run."""
    base, place = subject.frame.base, 0
    for step in runs[: at + 1]:
        place += place < len(base) and step == base[place]
    return place - 1


def _cheapest(choices: Slots, modes: Modes, place: int, seconds: Floats) -> int:
    """Return the slot alive at a place, unused there, that costs least a byte; -1 where there is none."""
    over = np.arange(len(choices.step)) < choices.gaps
    free = choices.open & over & (modes == KEEP) & (choices.begin < place) & (choices.end > place)
    found = np.flatnonzero(free)
    if not len(found):
        return -1
    rates = seconds[choices.step[found]] / choices.nbytes[found]
    return int(found[np.lexsort((found, rates))[0]])
