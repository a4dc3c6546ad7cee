"""Simulated annealing towards the fastest plan within a target; `moves` makes the proposals.

Every plan is decoded exactly.
"""

import numpy as np

from peakfold.plan.schedule.archive import Archive, copy, note
from peakfold.plan.schedule.arrays import Bytes
from peakfold.plan.schedule.changes import undo
from peakfold.plan.schedule.code import Code, Modes, Outcome, Scratch
from peakfold.plan.schedule.decode import decode
from peakfold.plan.schedule.kernel import compiled
from peakfold.plan.schedule.moves import Random, draw, propose
from peakfold.plan.schedule.slots import Slots

SPREAD = 4.0
"""Weight of the mean excess of all runs against the excess of the peak."""
SLACK = 1e-3
"""Part of the target that any excess counts for at least."""


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
        count = propose(code, slots, modes, state, hot, hots, now.excess <= 0, changed)
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
            copy(modes, best_modes)
    copy(best_modes, modes)
    return best
