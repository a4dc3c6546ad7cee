"""What each name of the emitted function holds, step by step."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from peakfold.bridge.codegen import operators
from peakfold.bridge.codegen.literals import literal
from peakfold.bridge.codegen.names import Namer
from peakfold.bridge.codegen.pieces import single
from peakfold.bridge.codegen.regrouped import beneath, same
from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Node, Value, values_in
from peakfold.ir.plan import Buffer, Reuse, Run, Step
from peakfold.plan.fission.program import Nest, Repeat


@dataclass
class _Storage:
    """A storage that lives: the names bound to it, the values they are, and its bytes."""

    nbytes: int
    names: dict[Value, str]


class Frame:
    """The local names of the emitted function, and the bytes that live behind them.

    Attributes:
        loops: the regions of the graph, by id of the node that stands for each.
        bodies: the planned graphs of its control flow, by id of the node.
        live: bytes of every storage that lives, inputs included.
        used: names of operators that the text read so far calls.
        read_inputs: ids of the inputs that it reads.
        move: writes the moves to the host and back; None where there are none.
        is_nested: whether it is of a loop's body.
        forks: numbers for branches and loops, where the program says which way it goes; else None.
    """

    def __init__(
        self,
        graph: Graph,
        namer: Namer,
        functions: dict[str, str],
        loops: Mapping[int, Repeat],
        given: Mapping[int, str] | None = None,
        bodies: Mapping[int, tuple[Nest, ...]] | None = None,
    ) -> None:
        self.graph = graph
        self.loops = loops
        self.bodies = bodies or {}
        self.used: dict[str, None] = {}
        self.read_inputs: dict[int, None] = {}
        self.namer = namer
        self.move: Callable[[Step], Iterator[str]] | None = None
        self.is_nested = given is not None
        self.forks: Iterator[int] | None = None
        self._functions = functions
        self._names = _input_names(graph, namer) if given is None else _as_values(given)
        self._storages: dict[Buffer, _Storage] = {}
        self._latest: dict[Value, Buffer] = {}
        self.live = sum(graph.nbytes(Value(given.id)) for given in graph.inputs)

    def nested(self, nest: Nest, given: Mapping[int, str], suffix: str) -> "Frame":
        """Return the frame of a graph that runs inside of this one; its inputs are expressions here."""
        namer = self.namer.nested(nest.graph, suffix)
        found = Frame(nest.graph, namer, self._functions, nest.loops, given, nest.bodies)
        found.used, found.live, found.forks = self.used, self.live, self.forks
        return found

    def function(self, operator: str) -> str:
        """Return the name of an operator's function, and note that it is used."""
        self.used[operator] = None
        return self._functions[operator]

    def read(self, value: Value) -> str:
        """Return the expression of a value; views are written out where they are read, where they differ."""
        return self.view(same(self.graph, value, self._names))

    def view(self, value: Value) -> str:
        """Return the expression of a value, as a tensor of its own where it is a view."""
        texts: dict[Value, str] = {}
        stack = [value]
        while stack:
            top = stack[-1]
            missing = [operand for operand in self._operands(top) if operand not in texts]
            if missing:
                stack.extend(missing)
                continue
            texts[stack.pop()] = self._text(top, texts)
        return texts[value]

    def _operands(self, value: Value) -> list[Value]:
        if value in self._names:
            return []
        node = self.graph.node.get(value.node)
        if node is not None and node.is_view:
            node = beneath(self.graph, node, self._names)
        if node is None or not node.is_view:
            raise PlanError(
                stage="codegen",
                what=f"{self.graph.name_of(value)} is read where it does not exist",
                expected="a value that is computed before it is read, and freed after",
                hint="check the schedule (PEAKFOLD_CHECK=1)",
            )
        return list(values_in((*node.args, *(arg for _, arg in node.kwargs))))

    def _text(self, value: Value, texts: dict[Value, str]) -> str:
        name = self._names.get(value)
        if name is not None:
            if value.node in self.graph.input:
                self.read_inputs[value.node] = None
            return name
        node = beneath(self.graph, self.graph.node[value.node], self._names)
        node = single(self.graph, node, value.index)
        arguments = ", ".join(_arguments(node, texts))
        call = f"{self.function(node.op.name)}({arguments})"
        return f"{call}[{value.index}]" if operators.returns_sequence(node.op.name) else call

    def arguments(self, node: Node) -> list[str]:
        """Return the text of each argument of a node."""
        return _arguments(node, {value: self.read(value) for value in node.inputs})

    def define(self, node: Node, run: Run) -> list[str]:
        """Bind the outputs of a run to their names, and return the names."""
        found = []
        for value in node.outputs:
            name = self.namer.value(value, run.k)
            found.append(name)
            self._names[value] = name
            self._own(value, run.k, name)
        return found

    def _own(self, value: Value, k: int, name: str) -> None:
        root = self.graph.storage(value)
        if root != value:
            latest = self._latest.get(root)
            if latest is not None:
                self._storages[latest].names[value] = name
            return
        buffer = Buffer(value, k)
        self._latest[value] = buffer
        self._storages[buffer] = _Storage(self.graph.nbytes(value), {value: name})
        self.live += self.graph.nbytes(value)

    def take(self, node: Node, run: Run, reuse: Reuse) -> list[str]:
        """Note that an output has the storage of an operand; return the names that end there."""
        value = Value(node.id, reuse.output)
        made = self._storages[Buffer(value, run.k)]
        self.live -= made.nbytes
        root = self.graph.storage(reuse.operand)
        if root.node in self.graph.input:
            made.nbytes = 0
            return []
        taken = self._storages.pop(self._latest.pop(root))
        made.nbytes = taken.nbytes
        self._forget(taken)
        return list(taken.names.values())

    def rename(self, node: Node, reuses: Iterable[Reuse]) -> str:
        """Give outputs that were written over inputs the names of those; return what names the others."""
        same = {Value(node.id, r.output): r.operand for r in reuses if r.kind == "update"}
        for value, operand in same.items():
            self._names[value] = self._names[self.graph.storage(operand)]
            self._storages[self._latest[value]].names.pop(value, None)
        others = [self._names[value] for value in node.outputs if value not in same]
        return f"{', '.join(others)} = " if others else ""

    def free(self, buffer: Buffer) -> tuple[list[str], int]:
        """Forget a buffer; return the names to delete and the bytes that they gave back."""
        storage = self._storages.pop(buffer, None)
        if storage is None:
            raise PlanError(
                stage="codegen",
                what=f"a buffer of {self.graph.name_of(buffer.value)} is freed that does not live",
                got=f"run {buffer.k}",
                hint="check the schedule (PEAKFOLD_CHECK=1)",
            )
        if self._latest.get(buffer.value) == buffer:
            del self._latest[buffer.value]
        self._forget(storage)
        self.live -= storage.nbytes
        return list(storage.names.values()), storage.nbytes

    def leave(self, value: Value) -> list[str]:
        """Hand the storage of a value to who is outside; return the names that it had here."""
        root = self.graph.storage(value)
        storage = self._storages[self._latest[root]]
        self.live -= storage.nbytes
        self._forget(storage)
        return list(storage.names.values())

    def away(self, buffer: Buffer) -> tuple[list[str], int]:
        """Note that the bytes of a buffer wait on the host; return the names to delete and the bytes."""
        if buffer.value.node not in self.graph.input:
            return self.free(buffer)
        nbytes = self.graph.nbytes(buffer.value)
        self.live -= nbytes
        return [], nbytes

    def back(self, buffer: Buffer) -> tuple[str, int]:
        """Note that a buffer that was away has bytes again; return its name and the bytes."""
        nbytes = self.graph.nbytes(buffer.value)
        if buffer.value.node in self.graph.input:
            self.live += nbytes
            return self.read(buffer.value), nbytes
        name = self.namer.value(buffer.value, buffer.k)
        self._names[buffer.value] = name
        self._own(buffer.value, buffer.k, name)
        return name, nbytes

    def _forget(self, storage: _Storage) -> None:
        for value, name in storage.names.items():
            if self._names.get(value) == name:
                del self._names[value]


def _input_names(graph: Graph, namer: Namer) -> dict[Value, str]:
    return {Value(given.id): namer.value(Value(given.id)) for given in graph.inputs}


def _as_values(given: Mapping[int, str]) -> dict[Value, str]:
    return {Value(ident): text for ident, text in given.items()}


def _arguments(node: Node, texts: dict[Value, str]) -> list[str]:
    positional = [literal(arg, texts.__getitem__) for arg in node.args]
    return positional + [f"{key}={literal(arg, texts.__getitem__)}" for key, arg in node.kwargs]
