"""What each name of the emitted function holds, step by step."""

from dataclasses import dataclass

from peakfold.bridge.codegen import operators
from peakfold.bridge.codegen.literals import literal
from peakfold.bridge.codegen.names import Namer
from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Node, Value, values_in
from peakfold.ir.plan import Buffer, Reuse, Run


@dataclass
class _Storage:
    """A storage that lives: the names bound to it, the values they are, and its bytes."""

    nbytes: int
    names: dict[Value, str]


class Frame:
    """The local names of the emitted function, and the bytes that live behind them.

    Attributes:
        live: bytes of every storage that lives, inputs included.
        used: names of operators that the text read so far calls.
        read_inputs: ids of the inputs that it reads.
    """

    def __init__(self, graph: Graph, namer: Namer, functions: dict[str, str]) -> None:
        self.graph = graph
        self.used: dict[str, None] = {}
        self.read_inputs: dict[int, None] = {}
        self._namer = namer
        self._functions = functions
        self._names = {Value(given.id): namer.value(Value(given.id)) for given in graph.inputs}
        self._storages: dict[Buffer, _Storage] = {}
        self._latest: dict[Value, Buffer] = {}
        self.live = sum(graph.nbytes(Value(given.id)) for given in graph.inputs)

    def function(self, operator: str) -> str:
        """Return the name of an operator's function, and note that it is used."""
        self.used[operator] = None
        return self._functions[operator]

    def read(self, value: Value) -> str:
        """Return the expression of a value; views are written out where they are read."""
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
        node = self.graph.node[value.node]
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
            name = self._namer.value(value, run.k)
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

    def _forget(self, storage: _Storage) -> None:
        for value, name in storage.names.items():
            if self._names.get(value) == name:
                del self._names[value]


def _arguments(node: Node, texts: dict[Value, str]) -> list[str]:
    positional = [literal(arg, texts.__getitem__) for arg in node.args]
    return positional + [f"{key}={literal(arg, texts.__getitem__)}" for key, arg in node.kwargs]
