"""Who reads a value: views hand it on."""

from collections.abc import Iterator

from peakfold.ir.graph import Graph, Node, Value


def readers(graph: Graph, value: Value) -> Iterator[Node]:
    """Yield the steps that read a value, through views too; one that reads several views, as often.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> x, kind = Value(0), tensor(2, 2)
        >>> view = Node(1, "t", Op("aten.t.default"), (x,), (), (kind,), (x,))
        >>> exp = Node(2, "exp", Op("aten.exp.default"), (Value(1),), (), (kind,), (None,))
        >>> graph = Graph((Input(0, "x", "batch", kind),), (view, exp), (Output("y", Value(2)),))
        >>> [node.name for node in readers(graph, x)]
        ['exp']
    """
    waiting = [value]
    while waiting:
        for user in graph.users.get(waiting.pop(), ()):
            node = graph.node[user]
            if node.is_view:
                waiting += node.outputs
            else:
                yield node
