"""Building a graph from another one, node by node."""

from collections.abc import Iterator
from dataclasses import replace

from peakfold.ir.graph import Arg, Graph, Node, Op, Output, State, Symbol, Value, substitute
from peakfold.ir.types import TensorType, Type, tensor

Kwargs = tuple[tuple[str, Arg], ...]


class Rebuild:
    """A graph that is built in program order from nodes of another one and new ones.

    Args:
        graph: the other one.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.new: dict[Value, Value] = {}
        self._next = 1 + max((*graph.input, *graph.node), default=0)
        self._taken = {node.name for node in graph.nodes} | {given.name for given in graph.inputs}
        self._types: dict[Value, Type] = {Value(given.id): given.type for given in graph.inputs}

    def keep(self, node: Node) -> None:
        """Add a node of the other graph as it is, reading what stands for its operands."""
        self._add(
            replace(
                node,
                args=tuple(substitute(arg, self.new) for arg in node.args),
                kwargs=tuple((key, substitute(arg, self.new)) for key, arg in node.kwargs),
                aliases=tuple(None if a is None else self.new.get(a, a) for a in node.aliases),
            )
        )

    def make(
        self,
        near: Node,
        word: str,
        op: str | Op,
        args: tuple[Arg, ...],
        *types: Type,
        kwargs: Kwargs = (),
        view: bool = False,
        stream: int | None = None,
    ) -> tuple[Value, ...]:
        """Add a new node, and return its outputs.

        Args:
            near: the node that it comes from.
            word: what its name adds to that node's.
            op: the operator.
            args: positional arguments, in terms of the new graph.
            types: one an output.
            kwargs: keyword arguments.
            view: whether it is a view of its first argument.
            stream: position in the random stream.
        """
        alias = args[0] if view and isinstance(args[0], Value) else None
        node = Node(
            id=self._next,
            name=self._name(f"{near.name}.{word}"),
            op=Op(op) if isinstance(op, str) else op,
            args=args,
            kwargs=kwargs,
            types=types,
            aliases=(alias,) * len(types),
            stream=stream,
            origin=near.origin,
        )
        self._next += 1
        self._add(node)
        return node.outputs

    def type(self, value: Value) -> TensorType:
        """Return the type of a tensor of the new graph."""
        kind = self._types[value]
        assert isinstance(kind, TensorType), value
        return kind

    def read(self, arg: Arg) -> Arg:
        """Return an argument of the other graph in terms of the new one."""
        return substitute(arg, self.new)

    def value(self, arg: Arg) -> Value:
        """Return an argument that is a Value, in terms of the new graph."""
        found = self.read(arg)
        assert isinstance(found, Value)
        return found

    def graph_of(self) -> Graph:
        """Return the new graph."""
        outputs = tuple(Output(out.name, self.new.get(out.value, out.value)) for out in self.graph.outputs)
        state = tuple(State(pair.input, self.new.get(pair.output, pair.output)) for pair in self.graph.state)
        return Graph(self.graph.inputs, tuple(self.nodes), outputs, state)

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        self._types.update(zip(node.outputs, node.types, strict=True))

    def _name(self, wanted: str) -> str:
        found, count = wanted, 1
        while found in self._taken:
            count += 1
            found = f"{wanted}_{count}"
        self._taken.add(found)
        return found


def dense(kind: TensorType, *shape: int, dtype: str | None = None) -> TensorType:
    """Return a row-major type on the device and, unless another is given, of the dtype of a type."""
    return tensor(*shape, dtype=dtype or kind.dtype, device=kind.device)


def placed_on(kind: TensorType) -> Kwargs:
    """Return the keyword arguments that make a tensor of a type's dtype on its device."""
    return (("dtype", Symbol("dtype", kind.dtype)), ("device", Symbol("device", kind.device)))


def without_unread(graph: Graph) -> Graph:
    """Return a graph without the pure nodes that nothing reads."""
    needed = {out.value.node for out in graph.outputs} | {pair.output.node for pair in graph.state}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.id in needed or node.op.random or not node.op.pure:
            kept.append(node)
            needed.update(_makers(node))
    return replace(graph, nodes=tuple(reversed(kept)))


def _makers(node: Node) -> Iterator[int]:
    yield from (value.node for value in node.inputs)
