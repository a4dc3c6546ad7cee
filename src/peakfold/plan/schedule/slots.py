"""What the search may decide: one slot for each gap and tail, with bytes, place, cost and class."""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from peakfold.plan.schedule.arrays import Bytes, Flags, Floats, Ints
from peakfold.plan.schedule.frame import Frame

DEEP = 64
"""Steps of a chain, at most, whose seconds are summed."""


class Slots(NamedTuple):
    """Arrays over slots: gaps first, then the tails of steps.

    Attributes:
        step: which step runs again.
        nbytes: bytes that are dropped.
        begin, end: places in the base order of the reader before and the reader after.
        open: whether the search may drop it: droppable, has bytes, and not read at once.
        choices: the open slots.
        class_of: slots of one class do the same in different layers; -1 where not open.
        member_begin, member: slots of each class in the order of their places.
        gaps: number of gaps.
        again: seconds of the step and of all that it needs and that is gone where it would run again, as
            long as nothing else is dropped.
    """

    step: Ints
    nbytes: Bytes
    begin: Ints
    end: Ints
    open: Flags
    choices: Bytes
    class_of: Ints
    member_begin: Ints
    member: Bytes
    gaps: int
    again: Floats


def slots(frame: Frame) -> Slots:
    """Return the slots of a frame."""
    tables = frame.tables
    count = frame.gaps + tables.steps
    step = np.concatenate([frame.gap_producer, np.arange(tables.steps, dtype=np.int32)])
    nbytes = np.zeros(count, np.int64)
    begin = np.full(count, len(frame.base), np.int32)
    end = np.full(count, len(frame.base), np.int32)
    end[: frame.gaps] = frame.rank[frame.gap_user]
    for v in np.flatnonzero((tables.producer >= 0) & ~tables.host_number).tolist():
        place = int(frame.rank[tables.producer[v]])
        maker = int(tables.producer[v])
        for gap in frame.use_gap[frame.use_begin[v] : frame.use_begin[v + 1]].tolist():
            nbytes[gap] += tables.nbytes[v]
            begin[gap] = min(begin[gap], place)
            place = int(frame.rank[frame.gap_user[gap]])
        nbytes[frame.gaps + maker] += tables.nbytes[v]
        begin[frame.gaps + maker] = min(begin[frame.gaps + maker], place)
    usable = frame.droppable[step] & (nbytes > 0) & (end - begin > 1) & ~frame.late[step]
    members = _classes(frame, step, nbytes, begin, usable)
    class_of = np.full(count, -1, np.int32)
    for index, row in enumerate(members):
        class_of[row] = index
    return Slots(
        step=step,
        nbytes=nbytes,
        begin=begin,
        end=end,
        open=usable,
        choices=np.flatnonzero(usable),
        class_of=class_of,
        member_begin=np.cumsum([0, *(len(row) for row in members)], dtype=np.int32),
        member=np.array([slot for row in members for slot in row], np.int64),
        gaps=frame.gaps,
        again=_again(frame, step, end, usable),
    )


def _again(frame: Frame, step: Ints, end: Ints, usable: Flags) -> Floats:
    tables, rank = frame.tables, frame.rank
    last = np.full(len(tables.nbytes), -1, np.int64)
    for v in np.flatnonzero(tables.producer >= 0).tolist():
        users = frame.gap_user[frame.use_gap[frame.use_begin[v] : frame.use_begin[v + 1]]]
        last[v] = rank[users].max(initial=int(rank[tables.producer[v]]))
    last[tables.is_output] = len(frame.base)
    seconds = tables.seconds.astype(np.float64)
    found = seconds[step].copy()
    for slot in np.flatnonzero(usable).tolist():
        place, chain, waiting = int(end[slot]), {int(step[slot])}, [int(step[slot])]
        while waiting and len(chain) < DEEP:
            at = waiting.pop()
            for v in frame.need[frame.need_begin[at] : frame.need_begin[at + 1]].tolist():
                maker = int(tables.producer[v])
                if maker not in chain and last[v] < place:
                    chain.add(maker)
                    waiting.append(maker)
        found[slot] = seconds[sorted(chain)].sum()
    return found


def _classes(frame: Frame, step: Ints, nbytes: Bytes, begin: Ints, usable: Flags) -> Sequence[Sequence[int]]:
    """Group open slots whose surroundings, two operators deep, look the same."""
    look = _looks(frame)
    groups: dict[Hashable, list[int]] = {}
    for slot in sorted(np.flatnonzero(usable).tolist(), key=lambda s: (int(begin[s]), s)):
        user = look[int(frame.gap_user[slot])] if slot < frame.gaps else None
        groups.setdefault((look[int(step[slot])], user, int(nbytes[slot])), []).append(slot)
    return list(groups.values())


def _looks(frame: Frame) -> Mapping[int, int]:
    """Hash of each step: its operator and sizes, and those of the steps that it reads."""
    tables = frame.tables
    sizes = tables.nbytes.tolist()
    own: dict[int, Hashable] = {}
    for step in range(tables.steps):
        node = tables.graph.node[int(tables.nodes[step])]
        made = tables.outputs[tables.output_begin[step] : tables.output_begin[step + 1]].tolist()
        own[step] = (node.op.name, node.origin.phase, tuple(sizes[v] for v in made))
    numbers: dict[Hashable, int] = {}
    found: dict[int, int] = {}
    for step in range(tables.steps):
        reads = tables.operands[tables.operand_begin[step] : tables.operand_begin[step + 1]].tolist()
        around = tuple(own[int(p)] if (p := tables.producer[v]) >= 0 else None for v in reads)
        found[step] = numbers.setdefault((own[step], around), len(numbers))
    return found
