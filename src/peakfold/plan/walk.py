"""One walk over the steps of a schedule that asks at each whether what it needs is there."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from peakfold.ir.graph import Graph, Node, Value
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
    Run,
    Step,
    Unpack,
)
from peakfold.ir.types import TensorType
from peakfold.ops.inplace import reusable_operands
from peakfold.ops.packing import packing


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is not legal.

    Attributes:
        where: the name of the node, input or step that is wrong.
        what: what is wrong with it.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


DEVICE, LEAVING, HOST, COMING = "on the device", "leaving the device", "on the host", "coming back"
PACKED = "packed"
_MOVES: dict[type[Step], tuple[str, str]] = {
    Offload: (DEVICE, LEAVING),
    Release: (LEAVING, HOST),
    Prefetch: (HOST, COMING),
    Arrive: (COMING, DEVICE),
    Pack: (DEVICE, PACKED),
    Unpack: (PACKED, DEVICE),
}
"""Where the bytes must be before a move, and where they are after it."""


@dataclass(slots=True)
class _Block:
    """Memory that buffers are names of.

    Attributes:
        given: id of the graph input whose memory it is, or None.
        place: where its bytes are: on the device, where they may be written; leaving it, where they may
            only be read; on the host; or coming back.
    """

    given: int | None = None
    place: str = DEVICE


class Walk:
    """The state of a schedule between two steps.

    Args:
        graph: what is computed.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.blocks = {Buffer(Value(given.id)): _Block(given.id) for given in graph.inputs}
        self.latest = {Value(given.id): 0 for given in graph.inputs}
        self.runs: Counter[int] = Counter()
        self.numbers: set[int] = set()
        self.committed: set[int] = set()
        self.drawn = -1

    def check(self, steps: Sequence[Step]) -> Iterator[Violation]:
        """Yield what is wrong, in the order of the steps, and then with what they leave behind."""
        yield from self._steps(steps)
        yield from self._missing()
        yield from self._replaced()
        yield from self._left()

    def _steps(self, steps: Sequence[Step]) -> Iterator[Violation]:
        for step in steps:
            if isinstance(step, Compute):
                yield from self._compute(step)
            elif isinstance(step, Free):
                yield from self._free(step.buffer)
            elif isinstance(step, Commit):
                yield from self._commit(step.input)
            elif isinstance(step, Loop):
                yield from self._steps(step.steps)
            else:
                yield from self._move(step)

    # --- steps ---

    def _compute(self, step: Compute) -> Iterator[Violation]:
        node = self.graph.node.get(step.run.node)
        if node is None:
            yield Violation(str(step.run), "the graph has no such node")
            return
        yield from self._count(node, step.run)
        if node.is_view:
            yield Violation(node.name, "it is a view, and never a step")
            return
        for value in dict.fromkeys(node.inputs):
            yield from self._read(node.name, value)
        written: dict[int, _Block] = {}
        for reuse in step.reuses:
            yield from self._reuse(node, reuse, written)
        self._make(node, step.run.k, written)

    def _count(self, node: Node, run: Run) -> Iterator[Violation]:
        if run.k != self.runs[node.id]:
            yield Violation(node.name, f"run {run.k} comes after {self.runs[node.id]} runs")
        if run.k > 0 and not node.op.pure and not node.op.random:
            yield Violation(node.name, f"{node.op.name} is run again, and does more than compute")
        if run.k == 0 and node.stream is not None:
            if node.stream < self.drawn:
                yield Violation(node.name, f"it draws {node.stream} after {self.drawn} was drawn")
            self.drawn = max(self.drawn, node.stream)
        self.runs[node.id] += 1

    def _read(self, reader: str, value: Value) -> Iterator[Violation]:
        """Whether a value, and what the views on the way to its storage take, is there."""
        for needed in self._views(value):
            root = self.graph.storage(needed)
            name = self.graph.name_of(root)
            if not isinstance(self.graph.type(root), TensorType):
                if root.node in self.graph.node and root.node not in self.numbers:
                    yield Violation(reader, f"it reads {name} before it is computed")
            elif root.node in self.committed and root.index == 0:
                yield Violation(reader, f"it reads {name} after it was replaced")
            else:
                yield from self._live(reader, root)

    def _views(self, value: Value) -> list[Value]:
        found, stack = [], [value]
        while stack:
            item = stack.pop()
            found.append(item)
            node = self.graph.node.get(item.node)
            if node is not None and node.is_view:
                stack.extend(node.inputs)
        return found

    def _live(self, reader: str, root: Value) -> Iterator[Violation]:
        name = self.graph.name_of(root)
        block = self.blocks.get(Buffer(root, self.latest.get(root, 0)))
        if root not in self.latest:
            yield Violation(reader, f"it reads {name} before it is computed")
        elif block is None:
            yield Violation(reader, f"it reads {name} after its bytes were given back or written over")
        elif block.place not in (DEVICE, LEAVING):
            yield Violation(reader, f"it reads {name} while it is {block.place}")

    def _reuse(self, node: Node, reuse: Reuse, written: dict[int, _Block]) -> Iterator[Violation]:
        """Check one Reuse, and move the block from the operand's name to the output's."""
        ways = {(way.output, way.operand) for way in reusable_operands(self.graph, node)}
        if (reuse.output, reuse.operand) not in ways:
            what = f"{node.op.name} cannot write output {reuse.output} over {reuse.operand}"
            yield Violation(node.name, what)
            return
        name = self.graph.name_of(reuse.operand)
        root = self.graph.storage(reuse.operand)
        block = self.blocks.pop(Buffer(root, self.latest.get(root, 0)), None)
        if block is None or reuse.output in written:
            yield Violation(node.name, f"{name} is written over twice, or is not there")
            return
        written[reuse.output] = block
        if block.place != DEVICE:
            yield Violation(node.name, f"it writes over {name} while it is {block.place}")
        if (block.given is not None) != (reuse.kind == "update"):
            whose = "the program's own" if block.given is None else "an input's"
            yield Violation(node.name, f"it writes over {name} as {reuse.kind}, and that memory is {whose}")
        elif block.given is not None and block.given not in self.graph.new_value:
            yield Violation(node.name, f"it writes over {name}, an input that the program does not replace")

    def _make(self, node: Node, k: int, written: dict[int, _Block]) -> None:
        for value, kind, alias in zip(node.outputs, node.types, node.aliases, strict=True):
            if not isinstance(kind, TensorType):
                self.numbers.add(node.id)
            elif alias is None:
                self.latest[value] = k
                self.blocks[Buffer(value, k)] = written.get(value.index, _Block())

    def _free(self, buffer: Buffer) -> Iterator[Violation]:
        block = self.blocks.get(buffer)
        if block is None:
            yield Violation(self._named(buffer), "it is freed where it has no bytes")
        elif block.given is not None:
            yield Violation(self._named(buffer), "it is freed, and its memory is an input's")
        elif block.place != DEVICE:
            yield Violation(self._named(buffer), f"it is freed while it is {block.place}")
        else:
            del self.blocks[buffer]

    def _commit(self, ident: int) -> Iterator[Violation]:
        new = self.graph.new_value.get(ident)
        if new is None:
            yield Violation(str(ident), "it is committed, and has no new value")
            return
        name = self.graph.input[ident].name
        if ident in self.committed:
            yield Violation(name, "it is replaced twice")
        yield from self._read(f"the new value of {name}", new)
        own = self.blocks.get(Buffer(Value(ident)))
        if own is not None and own.place != DEVICE:
            yield Violation(name, f"it is replaced while it is {own.place}")
        self.committed.add(ident)

    def _move(self, step: Offload | Release | Prefetch | Arrive | Pack | Unpack) -> Iterator[Violation]:
        block = self.blocks.get(step.buffer)
        before, after = _MOVES[type(step)]
        if block is None or block.place != before:
            found = "not there" if block is None else block.place
            what = f"it is {found}, and {type(step).__name__.lower()} needs it {before}"
            yield Violation(self._named(step.buffer), what)
        elif block.given not in (None, step.buffer.value.node):
            yield Violation(self._named(step.buffer), "it is moved, and its bytes are those of an input")
        elif isinstance(step, Pack) and (block.given is not None or not self._packs(step.buffer.value)):
            yield Violation(self._named(step.buffer), "it is packed, and cannot be without loss")
        else:
            block.place = after

    def _packs(self, value: Value) -> bool:
        return packing(self.graph, value) is not None

    # --- the end ---

    def _missing(self) -> Iterator[Violation]:
        needed = self._needed()
        for node in self.graph.nodes:
            if node.id in needed and not self.runs[node.id]:
                yield Violation(node.name, "it is never run")

    def _needed(self) -> set[int]:
        """Nodes other than views that the results need, or that do more than compute."""
        stack = [out.value for out in self.graph.outputs] + [pair.output for pair in self.graph.state]
        found: set[int] = set()
        for node in self.graph.nodes:
            if node.op.random or not node.op.pure:
                stack.extend(node.outputs)
        while stack:
            node_ = self.graph.node.get(stack.pop().node)
            if node_ is not None and node_.id not in found:
                found.add(node_.id)
                stack.extend(node_.inputs)
        return {ident for ident in found if not self.graph.node[ident].is_view}

    def _replaced(self) -> Iterator[Violation]:
        """Whether each state input holds its new value: written over, copied, or the same."""
        for pair in self.graph.state:
            root = self.graph.storage(pair.output)
            if pair.input in self.committed or root == Value(pair.input):
                continue
            block = self.blocks.get(Buffer(root, self.latest.get(root, 0)))
            number = not isinstance(self.graph.type(root), TensorType)
            if not number and (block is None or block.given != pair.input):
                yield Violation(
                    self.graph.input[pair.input].name, "it does not hold its new value at the end"
                )

    def _left(self) -> Iterator[Violation]:
        kept = set()
        for out in self.graph.outputs:
            root = self.graph.storage(out.value)
            kept.add(Buffer(root, self.latest.get(root, 0)))
            if root.node not in self.graph.input:
                yield from self._read(f"the output {out.name}", out.value)
        for buffer, block in self.blocks.items():
            if block.place != DEVICE:
                yield Violation(self._named(buffer), f"it is {block.place} at the end")
            if block.given is None and buffer not in kept:
                yield Violation(self._named(buffer), "it is never freed")

    def _named(self, buffer: Buffer) -> str:
        known = buffer.value.node in self.graph.node or buffer.value.node in self.graph.input
        name = self.graph.name_of(buffer.value) if known else str(buffer.value)
        return f"{name}, run {buffer.k}"
