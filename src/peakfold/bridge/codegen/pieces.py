"""One piece of a tensor, read as such: a view of many pieces would make all of them at each read."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from peakfold.ir.graph import Arg, Graph, Node, Op, Value

SELECT = "aten.select.int"
SLICE = "aten.slice.Tensor"


def single(graph: Graph, node: Node, index: int) -> Node:
    """Return the view that makes one output of a view alone; the node itself where there is none.

    Example:
        >>> from peakfold.ir.graph import Input
        >>> from peakfold.ir.types import tensor
        >>> given = Input(0, "x", "batch", tensor(4, 6))
        >>> halves = (tensor(4, 3, strides=(6, 1)),) * 2
        >>> both = Node(1, "both", Op("aten.split.Tensor"), (Value(0), 3, -1), (), halves, (Value(0),) * 2)
        >>> made = single(Graph((given,), (both,), ()), both, 1)
        >>> made.op.name, made.args[1:]
        ('aten.slice.Tensor', (1, 3, 6))
    """
    form = _FORMS.get(node.op.name)
    made = None if form is None or node.kwargs else form(graph, node, index)
    if made is None:
        return node
    name, args = made
    return replace(node, op=Op(name), args=(node.args[0], *args))


_Made = tuple[str, tuple[Arg, ...]] | None


def _unbind(graph: Graph, node: Node, index: int) -> _Made:
    dim = node.args[1] if len(node.args) > 1 else 0
    return SELECT, (dim, index)


def _split(graph: Graph, node: Node, index: int) -> _Made:
    """``split(x, size or sizes, dim)``: the pieces that stand before this one say where it begins."""
    source, dim = node.args[0], node.args[2] if len(node.args) > 2 else 0
    if not isinstance(source, Value) or not isinstance(dim, int):
        return None
    dim %= len(graph.tensor_type(source).shape)
    lengths = [graph.tensor_type(output).shape[dim] for output in node.outputs[: index + 1]]
    return SLICE, (dim, sum(lengths[:-1]), sum(lengths))


_FORMS: Mapping[str, Callable[[Graph, Node, int], _Made]] = {
    "aten.unbind.int": _unbind,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.unsafe_split.Tensor": _split,
    "aten.unsafe_split_with_sizes.default": _split,
}
