"""From a Schedule to a tape, and the lifetime of every buffer on it.

A *block* is what an allocator hands out; a buffer is a name for one. Donation, update and
accumulation give a block a new name and take no bytes. Inside a loop, a block that is made there and
outlives a part is taken where the loop begins, and a block from outside is given back where it ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from peakfold.errors import PlanError
from peakfold.ir.graph import Value
from peakfold.ir.plan import (
    Arrive,
    Buffer,
    Commit,
    Compute,
    Free,
    Loop,
    Offload,
    Pack,
    Prefetch,
    Release,
    Reuse,
    Schedule,
    Step,
    Unpack,
)
from peakfold.ops.packing import packing
from peakfold.plan.schedule.arrays import Bytes, Ints, Tables
from peakfold.plan.schedule.kernel import (
    ARRIVE,
    COMMIT,
    COMPUTE,
    END,
    FREE,
    LOOP,
    MAX_LOOP_DEPTH,
    OFFLOAD,
    PACK,
    PREFETCH,
    RELEASE,
    UNPACK,
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
            on its Release row, and another begins on its Prefetch row.
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


Place = Literal["on the device", "packed", "on its way to the host", "on the host", "on its way back"]


@dataclass
class _Block:
    nbytes: int
    row: int
    depth: int
    span: int
    resident: bool = False
    place: Place = "on the device"


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
        elif isinstance(step, Release):
            row = self._release(step)
        elif isinstance(step, Prefetch):
            row = self._prefetch(step)
        elif isinstance(step, Arrive):
            row = self._arrive(step)
        elif isinstance(step, Pack):
            row = self._pack(step)
        elif isinstance(step, Unpack):
            row = self._unpack(step)
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
        block = self._on_device(buffer, "it is freed")
        storage = self.tables.storage_of[buffer.value]
        if block.resident:
            raise self._error("a buffer of the caller is freed", _name(self.tables, buffer), "a made buffer")
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
        if block.depth != len(self.frames):
            raise self._error(
                "a buffer from outside is offloaded", _name(self.tables, step.buffer), "one of the same loop"
            )
        block.place = "on its way to the host"
        return OFFLOAD, self.tables.storage_of[step.buffer.value], block.nbytes

    def _release(self, step: Release) -> tuple[int, int, int]:
        block = self._placed(step.buffer, "on its way to the host", "it is released")
        if block.depth != len(self.frames):
            name = _name(self.tables, step.buffer)
            raise self._error("a buffer is released in another loop", name, "the loop of its Offload")
        block.place = "on the host"
        self._close(step.buffer, len(self.rows))
        return RELEASE, self.tables.storage_of[step.buffer.value], block.nbytes

    def _prefetch(self, step: Prefetch) -> tuple[int, int, int]:
        buffer = step.buffer
        block = self._placed(buffer, "on the host", "it is prefetched")
        name = _name(self.tables, buffer)
        if self.latest[buffer.value] != buffer.k:
            raise self._error("an older run is prefetched", name, "the latest run, which is what is read")
        if block.depth != len(self.frames):
            raise self._error("a buffer is prefetched in another loop", name, "the loop of its Offload")
        self._begin(buffer, self._block(block.nbytes, block.resident), len(self.rows))
        self.blocks[buffer].place = "on its way back"
        return PREFETCH, self.tables.storage_of[buffer.value], block.nbytes

    def _arrive(self, step: Arrive) -> tuple[int, int, int]:
        block = self._placed(step.buffer, "on its way back", "it arrives")
        block.place = "on the device"
        return ARRIVE, self.tables.storage_of[step.buffer.value], block.nbytes

    def _pack(self, step: Pack) -> tuple[int, int, int]:
        buffer = step.buffer
        block = self._on_device(buffer, "it is packed")
        packed = packing(self.tables.graph, buffer.value)
        if packed is None or block.depth != len(self.frames):
            name = _name(self.tables, buffer)
            raise self._error("a buffer cannot be packed", name, "one that can, made here")
        self._close(buffer, len(self.rows))
        self._begin(buffer, self._block(packed.nbytes), len(self.rows))
        self.blocks[buffer].place = "packed"
        return PACK, self.tables.storage_of[buffer.value], packed.nbytes

    def _unpack(self, step: Unpack) -> tuple[int, int, int]:
        buffer = step.buffer
        block = self._placed(buffer, "packed", "it is unpacked")
        self._close(buffer, len(self.rows))
        self._begin(buffer, self._block(self.tables.graph.nbytes(buffer.value)), len(self.rows))
        return UNPACK, self.tables.storage_of[buffer.value], block.nbytes

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
            if block.depth == depth:
                self._hoist(buffer, block, frame)
        for span in frame.ending:
            self._last(span, len(self.rows))
        return END, 0, frame.deferred

    def _hoist(self, buffer: Buffer, block: _Block, frame: _Frame) -> None:
        """Take a block that outlives a part where the loop begins."""
        if self.rows[block.row][0] == PREFETCH or block.place != "on the device":
            name = _name(self.tables, buffer)
            raise self._error("a buffer is moved in a loop and outlives it", name, "a Free inside")
        for row, change in ((block.row, -block.nbytes), (frame.row, block.nbytes)):
            kind, index, amount = self.rows[row]
            self.rows[row] = kind, index, amount + change
        self.spans[block.span] = replace(self.spans[block.span], first=frame.row)
        block.row, block.depth = frame.row, block.depth - 1

    def _block(self, nbytes: int, resident: bool = False) -> _Block:
        return _Block(nbytes, len(self.rows), len(self.frames), len(self.spans), resident)

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
        return self._placed(buffer, "on the device", why)

    def _placed(self, buffer: Buffer, place: Place, why: str) -> _Block:
        block = self._known(buffer, why)
        if block.place != place:
            name = _name(self.tables, buffer)
            raise self._error(f"a buffer is {block.place} where {why}", name, f"one that is {place}")
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
