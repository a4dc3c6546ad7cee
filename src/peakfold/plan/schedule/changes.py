"""Changes of single modes, noted so that they can be taken back.

``changed`` has one row a change: the slot and the mode that it had.
"""

from peakfold.plan.schedule.arrays import Bytes
from peakfold.plan.schedule.code import Code, Modes
from peakfold.plan.schedule.frame import KEEP
from peakfold.plan.schedule.kernel import compiled
from peakfold.plan.schedule.slots import Slots


@compiled
def set_mode(modes: Modes, changed: Bytes, count: int, slot: int, mode: int) -> int:
    """Give a slot a mode; return how many changes were noted so far."""
    if modes[slot] == mode:
        return count
    changed[count, 0] = slot
    changed[count, 1] = modes[slot]
    modes[slot] = mode
    return count + 1


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
