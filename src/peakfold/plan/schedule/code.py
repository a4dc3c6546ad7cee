"""What decoding reads and writes: a frame as plain arrays, and room to work in."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from peakfold.plan.schedule.arrays import Bytes, Flags, Floats, Ints, begins, flat
from peakfold.plan.schedule.chains import chain
from peakfold.plan.schedule.frame import Frame

Modes = npt.NDArray[np.int16]
CAPACITY = 24
"""Most runs a step, on average: decoding stops there."""


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
        made_begin=begins(made),
        made=flat(made),
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
        state_begin=begins(state),
        state=flat(state),
        pair_new=np.array([new for _, new in pairs], np.int32),
        pair_maker=np.array(makers, np.int32),
        pair_head=np.array(heads, np.int32),
        chain_begin=begins(chains),
        chain=flat(chains),
        target_pair=np.array([pair_of[target.old] for target in targets], np.int32),
        target_begin=begins([target.producers for target in targets]),
        target_maker=flat([target.producers for target in targets]),
        cone_begin=begins([target.cone for target in targets]),
        cone=flat([target.cone for target in targets]),
        late=np.array(sorted(np.flatnonzero(frame.late), key=lambda s: int(frame.rank[s])), np.int32),
        early=updates == "early",
        reuse=reuse,
        resident=tables.resident,
        capacity=CAPACITY * tables.steps + 64,
    )


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
