"""How many bytes live at once when a graph runs in its own order; storages end with their last reader."""

from collections.abc import Iterator

from peakfold.ir.graph import Graph, Value
from peakfold.ir.types import TensorType


def live_bytes(graph: Graph) -> Iterator[int]:
    """Yield the bytes that live while each node runs, inputs included; nothing is written in place.

    A new value of state is held to the end, where it takes the input's place.
    """
    last = _last_reads(graph)
    ends: dict[int, int] = {}
    for value, at in last.items():
        if value.node not in graph.input:
            ends[at] = ends.get(at, 0) + graph.nbytes(value)
    live = sum(graph.nbytes(Value(given.id)) for given in graph.inputs)
    for at, node in enumerate(graph.nodes):
        live += sum(
            kind.nbytes
            for kind, alias in zip(node.types, node.aliases, strict=True)
            if alias is None and isinstance(kind, TensorType)
        )
        yield live
        live -= ends.get(at, 0)


def peak(graph: Graph) -> int:
    """Return the most bytes that live at once.

    Example:
        >>> from peakfold.ir.graph import Input, Node, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(4))
        >>> y = Node(1, "y", Op("aten.exp.default"), (Value(0),), (), (tensor(4),), (None,))
        >>> peak(Graph((x,), (y,), (Output("y", Value(1)),)))
        32
    """
    resident = sum(graph.nbytes(Value(given.id)) for given in graph.inputs)
    return max(live_bytes(graph), default=resident)


def _last_reads(graph: Graph) -> dict[Value, int]:
    """Return the place of the last node that reads each storage; of what is returned, beyond all nodes."""
    last: dict[Value, int] = {}
    for at, node in enumerate(graph.nodes):
        for value in node.outputs:
            last.setdefault(graph.storage(value), at)
        for value in node.inputs:
            last[graph.storage(value)] = at
    end = len(graph.nodes)
    for value in graph.results:
        last[graph.storage(value)] = end
    return last
