"""Makes the nodes of a rewrite: ids, names, types and places of origin."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from peakfold.graph.rewrite.infer import infer
from peakfold.ir.graph import Arg, Graph, Node, Op, Value
from peakfold.ir.types import TensorType, Type


class Maker:
    """Nodes that are to stand for another one, and the types of what they give.

    Example:
        >>> from peakfold.ir.graph import Input, Output
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(2, 3))
        >>> y = Node(1, "y", Op("aten.neg.default"), (Value(0),), (), (tensor(2, 3),), (None,))
        >>> maker = Maker(Graph((x,), (y,), (Output("y", Value(1)),)), y, first=2)
        >>> maker.call("aten.t.default", Value(0)), maker.nodes[0].types[0].shape
        (Value(node=2, index=0), (3, 2))
    """

    def __init__(self, graph: Graph, root: Node, first: int) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self._root = root
        self._ids = count(first)
        self._types: dict[Value, Type] = {}
        self._made: dict[object, Value] = {}

    def type(self, value: Value) -> Type:
        """Return the type of an old or a new Value."""
        found = self._types.get(value)
        return self.graph.type(value) if found is None else found

    def tensor(self, value: Value) -> TensorType:
        """Return the type of a tensor."""
        kind = self.type(value)
        assert isinstance(kind, TensorType), value
        return kind

    def shape(self, value: Value) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.tensor(value).shape

    def call(self, op: str, *args: Arg, **kwargs: Arg) -> Value:
        """Return the first output of an operator; equal calls give one node.

        Raises:
            CannotInfer: its type is not known.
        """
        key = (op, args, tuple(kwargs.items()))
        if key not in self._made:
            self._made[key] = self._new(op, args, kwargs)
        return self._made[key]

    def _new(self, op: str, args: tuple[Arg, ...], kwargs: Mapping[str, Arg]) -> Value:
        results = infer(op, args, kwargs, self.type)
        ident = next(self._ids)
        node = Node(
            id=ident,
            name=f"{self._root.name}.{len(self.nodes)}.{op.split('.')[1].strip('_')}",
            op=Op(op),
            args=args,
            kwargs=tuple(kwargs.items()),
            types=tuple(result.type for result in results),
            aliases=tuple(result.alias for result in results),
            origin=self._root.origin,
        )
        self.nodes.append(node)
        self._types.update(zip(node.outputs, node.types, strict=True))
        return Value(ident)


def first_free(graph: Graph) -> int:
    """Return an id above all of a graph."""
    return 1 + max((*graph.input, *graph.node), default=-1)


def renamed(node: Node, name: str) -> Node:
    """Return a node under another name."""
    return replace(node, name=name)
