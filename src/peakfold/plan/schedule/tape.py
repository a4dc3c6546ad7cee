"""From a Schedule to a tape, and the lifetime of every buffer on it.

A *block* is what an allocator hands out; a buffer is a name for one. Donation, update and
accumulation give a block a new name and take no bytes. Inside a loop, a block that is made there and
outlives a part is taken where the loop begins, and a block from outside is given back where it ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from peakfold.errors import PlanError
from peakfold.ir.graph import Value
from peakfold.ir.plan import Buffer, Commit, Compute, Free, Loop, Offload, Prefetch, Reuse, Schedule, Step
from peakfold.plan.schedule.arrays import Bytes, Ints, Tables
from peakfold.plan.schedule.kernel import (
    COMMIT,
    COMPUTE,
    END,
    FREE,
    LOOP,
    MAX_LOOP_DEPTH,
    OFFLOAD,
    PREFETCH,
    WAIT,
)

FOREVER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Span:
    """A buffer that has bytes during rows ``first`` .. ``last`` of a tape.

    Attributes:
        buffer: its name.
        nbytes: its bytes.
        first: the row that makes it; -1 for a graph input.
        last: the last row during which it has bytes; `FOREVER` where it outlives the program.
        resident: whether its bytes are a graph input's.
    """

    buffer: Buffer
    nbytes: int
    first: int
    last: int
    resident: bool


@dataclass(frozen=True)
class Tape:
    """A schedule as rows.

    Attributes:
        kind, index, amount: the columns, see `kernel`.
        steps: the step of the schedule on each row; a Loop stands where it begins and where it ends.
        spans: every buffer, in the order in which they are made. The span of an offloaded buffer ends
            on its Offload row; how long the copy holds it is a matter of time, see ``released``.
    """

    kind: Ints
    index: Ints
    amount: Bytes
    steps: tuple[Step, ...]
    spans: tuple[Span, ...]


def record(tables: Tables, schedule: Schedule) -> Tape:
    """Return the tape of a schedule.

    Raises:
        PlanError: a step frees, moves or overwrites what has no bytes at that place.
    """
    recorder = _Recorder(tables)
    for step, ends in _flatten(schedule.steps):
        recorder.add(step, ends)
    return recorder.tape()


def _flatten(steps: tuple[Step, ...]) -> Iterator[tuple[Step, bool]]:
    """Yield each step; a Loop before its body (False) and after it (True)."""
    stack: list[tuple[Step, bool]] = [(step, False) for step in reversed(steps)]
    while stack:
        step, ends = stack.pop()
        yield step, ends
        if isinstance(step, Loop) and not ends:
            stack.append((step, True))
            stack.extend((inner, False) for inner in reversed(step.steps))


@dataclass
class _Block:
    nbytes: int
    row: int
    depth: int
    span: int
    resident: bool = False
    on_host: bool = False


@dataclass
class _Frame:
    row: int
    deferred: int = 0
    ending: list[int] = field(default_factory=list)


class _Recorder:
    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.rows: list[tuple[int, int, int]] = []
        self.steps: list[Step] = []
        self.blocks: dict[Buffer, _Block] = {}
        self.latest: dict[Value, int] = {}
        self.spans: list[Span] = []
        self.open: dict[Buffer, int] = {}
        self.frames: list[_Frame] = []
        for given in tables.graph.inputs:
            buffer = Buffer(Value(given.id))
            nbytes = tables.graph.nbytes(buffer.value)
            self._begin(buffer, _Block(nbytes, -1, 0, len(self.spans), resident=True), -1)

    def add(self, step: Step, ends: bool) -> None:
        if isinstance(step, Compute):
            row = self._compute(step)
        elif isinstance(step, Free):
            row = self._free(step)
        elif isinstance(step, Offload):
            row = self._offload(step)
        elif isinstance(step, Prefetch):
            row = self._prefetch(step)
        elif isinstance(step, Commit):
            row = self._commit(step)
        elif ends:
            row = self._end()
        else:
            row = self._loop(step)
        self.rows.append(row)
        self.steps.append(step)

    def tape(self) -> Tape:
        kind, index, amount = zip(*self.rows, strict=True) if self.rows else ((), (), ())
        return Tape(
            np.array(kind, np.int32),
            np.array(index, np.int32),
            np.array(amount, np.int64),
            tuple(self.steps),
            tuple(self.spans),
        )

    def _compute(self, step: Compute) -> tuple[int, int, int]:
        tables, run = self.tables, step.run
        if run.node not in tables.step_of:
            raise self._error("a view or an unknown node is computed", f"node {run.node}", "a step's node")
        targets = {reuse.output: reuse for reuse in step.reuses}
        taken = 0
        node = tables.graph.node[run.node]
        for value, alias in zip(node.outputs, node.aliases, strict=True):
            if alias is not None:
                continue
            buffer = Buffer(value, run.k)
            if buffer in self.blocks:
                raise self._error("a run is computed twice", _name(tables, buffer), "each run once")
            reuse = targets.get(value.index)
            if reuse is None:
                block = self._block(tables.graph.nbytes(value))
                taken += block.nbytes
            else:
                block = self._taken_over(reuse)
            self._begin(buffer, block, len(self.rows))
        return COMPUTE, tables.step_of[run.node], taken

    def _taken_over(self, reuse: Reuse) -> _Block:
        owner = self.tables.graph.storage(reuse.operand)
        buffer = Buffer(owner, self.latest.get(owner, 0))
        block = self._on_device(buffer, f"its bytes are taken to {reuse.kind}")
        self._finish(buffer, len(self.rows) - 1)
        return block

    def _free(self, step: Free) -> tuple[int, int, int]:
        buffer = step.buffer
        block = self._known(buffer, "it is freed")
        storage = self.tables.storage_of[buffer.value]
        if block.resident:
            raise self._error("a buffer of the caller is freed", _name(self.tables, buffer), "a made buffer")
        if block.on_host:
            del self.blocks[buffer]
            return WAIT, storage, 0
        if block.depth < len(self.frames):
            frame = self.frames[block.depth]
            frame.deferred += block.nbytes
            del self.blocks[buffer]
            frame.ending.append(self.open.pop(buffer))
            return FREE, storage, 0
        self._finish(buffer, len(self.rows))
        return FREE, storage, block.nbytes

    def _offload(self, step: Offload) -> tuple[int, int, int]:
        block = self._on_device(step.buffer, "it is offloaded")
        if block.resident or block.depth != len(self.frames):
            raise self._error(
                "a buffer from outside is offloaded",
                _name(self.tables, step.buffer),
                "a buffer made by the program, in the same loop",
            )
        block.on_host = True
        self._close(step.buffer, len(self.rows))
        return OFFLOAD, self.tables.storage_of[step.buffer.value], block.nbytes

    def _prefetch(self, step: Prefetch) -> tuple[int, int, int]:
        block = self._known(step.buffer, "it is prefetched")
        name = _name(self.tables, step.buffer)
        if not block.on_host:
            raise self._error("a buffer is prefetched that is on the device", name, "an offloaded buffer")
        if self.latest[step.buffer.value] != step.buffer.k:
            raise self._error("an older run is prefetched", name, "the latest run, which is what is read")
        if bool(block.depth) != bool(self.frames):
            raise self._error("a buffer is offloaded in a loop and prefetched outside", name, "both or none")
        self._begin(step.buffer, self._block(block.nbytes), len(self.rows))
        return PREFETCH, self.tables.storage_of[step.buffer.value], block.nbytes

    def _commit(self, step: Commit) -> tuple[int, int, int]:
        value = self.tables.graph.new_value.get(step.input)
        if value is None:
            raise self._error("an input is committed that has no new value", f"input {step.input}", "state")
        owner = self.tables.graph.storage(value)
        self._on_device(Buffer(owner, self.latest.get(owner, 0)), "it is committed")
        kept = self.tables.graph.tensor_type(value) if self._is_tensor(value) else None
        return COMMIT, self.tables.storage_of[owner], kept.nbytes if kept is not None else 0

    def _is_tensor(self, value: Value) -> bool:
        return not self.tables.host_number[self.tables.index(value)]

    def _loop(self, step: Step) -> tuple[int, int, int]:
        assert isinstance(step, Loop)
        if len(self.frames) == MAX_LOOP_DEPTH or step.parts < 1:
            got = f"{step.parts} parts at depth {len(self.frames) + 1}"
            raise self._error("a loop cannot be simulated", got, f">= 1 parts, depth <= {MAX_LOOP_DEPTH}")
        self.frames.append(_Frame(len(self.rows)))
        return LOOP, step.parts, 0

    def _end(self) -> tuple[int, int, int]:
        depth, frame = len(self.frames), self.frames.pop()
        for buffer, block in self.blocks.items():
            if block.depth == depth and not block.on_host:
                self._hoist(buffer, block, frame)
        for span in frame.ending:
            self._last(span, len(self.rows))
        return END, 0, frame.deferred

    def _hoist(self, buffer: Buffer, block: _Block, frame: _Frame) -> None:
        """Take a block that outlives a part where the loop begins."""
        if self.rows[block.row][0] == PREFETCH:
            raise self._error(
                "a buffer is prefetched in a loop and outlives it",
                _name(self.tables, buffer),
                "a Free inside",
            )
        for row, change in ((block.row, -block.nbytes), (frame.row, block.nbytes)):
            kind, index, amount = self.rows[row]
            self.rows[row] = kind, index, amount + change
        self.spans[block.span] = replace(self.spans[block.span], first=frame.row)
        block.row, block.depth = frame.row, block.depth - 1

    def _block(self, nbytes: int) -> _Block:
        return _Block(nbytes, len(self.rows), len(self.frames), len(self.spans))

    def _begin(self, buffer: Buffer, block: _Block, row: int) -> None:
        self.blocks[buffer] = block
        self.latest[buffer.value] = buffer.k
        self.open[buffer] = len(self.spans)
        self.spans.append(Span(buffer, block.nbytes, row, FOREVER, block.resident))

    def _finish(self, buffer: Buffer, row: int) -> None:
        del self.blocks[buffer]
        self._close(buffer, row)

    def _close(self, buffer: Buffer, row: int) -> None:
        self._last(self.open.pop(buffer), row)

    def _last(self, index: int, row: int) -> None:
        self.spans[index] = replace(self.spans[index], last=row)

    def _known(self, buffer: Buffer, why: str) -> _Block:
        block = self.blocks.get(buffer)
        if block is None:
            raise self._error(
                f"a buffer has no bytes where {why}", _name(self.tables, buffer), "a live buffer"
            )
        return block

    def _on_device(self, buffer: Buffer, why: str) -> _Block:
        block = self._known(buffer, why)
        if block.on_host:
            raise self._error(
                f"a buffer is on the host where {why}", _name(self.tables, buffer), "a Prefetch first"
            )
        return block

    def _error(self, what: str, got: str, expected: str) -> PlanError:
        return PlanError(
            stage="simulate",
            what=what,
            where=f"step {len(self.steps)} of the schedule",
            expected=expected,
            got=got,
            hint="the schedule is not legal for this graph: lower the plan again",
        )


def _name(tables: Tables, buffer: Buffer) -> str:
    known = buffer.value in tables.storage_of
    name = tables.graph.name_of(buffer.value) if known else str(buffer.value)
    return f"{name}, run {buffer.k}"
