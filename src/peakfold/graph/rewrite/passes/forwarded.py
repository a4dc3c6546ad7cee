"""Forwarding: what is read of a tensor where a part was written into it is that part, or the tensor before.

In-place operators on pieces of a tensor (``x.chunk(3)[0].add_(y)``, the gates of a GRU) are captured as
``slice_scatter``, each of which copies the whole tensor. Where only pieces are read, no whole is needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar

from peakfold.graph.rewrite.change import Change, Refusal, Rewritten, apply
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.maker import first_free
from peakfold.ir.graph import Graph, Node, Op, Value
from peakfold.ir.types import TensorType

WRITES = {"aten.slice_scatter.default": 2, "aten.select_scatter.default": 2}
"""Operators that write a part, with the place of the dimension among their arguments."""
READS = {"aten.slice.Tensor": 1, "aten.select.int": 1}
"""The same for those that read one."""
SPLITS = {
    "aten.split.Tensor": 2, "aten.unsafe_split.Tensor": 2, "aten.split_with_sizes.default": 2,
    "aten.unsafe_split_with_sizes.default": 2, "aten.unbind.int": 1,
}  # fmt: skip
"""The same for those that read all parts, one after the other."""


EXACT = frozenset(
    f"aten.{name}"
    for name in (
        "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "add.Scalar", "sub.Scalar", "mul.Scalar",
        "div.Scalar", "neg.default", "abs.default", "relu.default", "sqrt.default", "where.self",
        "maximum.default", "minimum.default", "masked_fill.Scalar", "clone.default",
        "sigmoid_backward.default",
        *(f"{word}.{form}" for word in ("eq", "ne", "lt", "le", "gt", "ge") for form in ("Tensor", "Scalar")),
    )
)  # fmt: skip
"""Operators whose result is exact, or rounded in the same places, element by element.

Others give other bits for an operand with gaps: sums go in another order, and functions such as ``sigmoid``
are computed by vectors where elements lie side by side, and one by one where not.
"""


@dataclass(frozen=True)
class Part:
    """Where a part lies: from ``start`` to before ``stop`` along a dimension, which a select leaves out."""

    dim: int
    start: int
    stop: int
    selected: bool

    def is_apart(self, other: "Part") -> bool:
        """Whether two parts along one dimension share no element."""
        return self.dim == other.dim and (self.stop <= other.start or other.stop <= self.start)


@dataclass(frozen=True)
class ForwardedParts:
    """Pieces that were written are read from what was written, others from the tensor before the write.

    Keeps every bit; done where the peak does not rise.
    """

    name: ClassVar[str] = "forwarded"

    def __call__(self, graph: Graph) -> Rewritten:
        """Return the graph with pieces in the place of wholes."""
        ids = count(first_free(graph))
        changes = [
            change
            for node in graph.nodes
            for value, part in _pieces(graph, node)
            if (change := _change(graph, node, value, part, ids)) is not None
        ]
        result = apply(graph, changes) if changes else Rewritten(graph)
        return Rewritten(graph) if isinstance(result, Refusal) or peak(result.graph) > peak(graph) else result


def _pieces(graph: Graph, node: Node) -> Iterator[tuple[Value, Part]]:
    """Yield the outputs of a node that are parts of its operand, with where they lie."""
    part = _part(graph, node, READS)
    if part is not None:
        yield node.outputs[0], part
    at = SPLITS.get(node.op.name)
    if at is None or node.kwargs:
        return
    dim = node.args[at] if len(node.args) > at else 0
    whole = node.args[0]
    if not isinstance(dim, int) or not isinstance(whole, Value):
        return
    dim %= len(graph.tensor_type(whole).shape)
    selected, start = node.op.name == "aten.unbind.int", 0
    for value, kind in zip(node.outputs, node.types, strict=True):
        assert isinstance(kind, TensorType)
        stop = start + (1 if selected else kind.shape[dim])
        yield value, Part(dim, start, stop, selected)
        start = stop


def _change(graph: Graph, node: Node, piece: Value, here: Part, ids: Iterator[int]) -> Change | None:
    """Return what a piece becomes, what was written there or a view of an earlier tensor; None: it stays."""
    source = node.args[0]
    assert isinstance(source, Value)
    whole = source
    for writer in _writers(graph, source):
        there = _part(graph, writer, WRITES)
        base, written = writer.args[:2]
        assert isinstance(base, Value)
        assert isinstance(written, Value)
        if there == here and _is_as_good(graph, piece, written):
            return Change(values={piece: written})
        if there == here and graph.type(base) == graph.type(source):
            return _alone(graph, node, piece, here, writer, ids)
        if there is None or not there.is_apart(here) or graph.type(base) != graph.type(source):
            break
        whole = base
    if whole == source or not graph.users.get(piece):
        return None
    view = _view(graph, node, piece, here, whole, next(ids))
    return Change((view,), {piece: view.outputs[0]})


def _alone(
    graph: Graph, node: Node, piece: Value, here: Part, writer: Node, ids: Iterator[int]
) -> Change | None:
    """Return a piece as a view of a tensor into which it alone was written: nothing else of that is read."""
    *_, first = (writer, *_writers(graph, writer.outputs[0]))
    whole = first.args[0]
    assert isinstance(whole, Value)
    alone = not any(reader != node.id for reader in graph.users.get(writer.outputs[0], ()))
    if (alone and first.id == writer.id) or graph.type(whole) != writer.types[0]:
        return None
    if not graph.users.get(piece):
        return None
    args = (whole, *writer.args[1:])
    again = replace(writer, id=next(ids), name=f"{node.name}.alone.{piece.index}", args=args)
    view = _view(graph, node, piece, here, again.outputs[0], next(ids))
    return Change((again, view), {piece: view.outputs[0]})


def _view(graph: Graph, node: Node, piece: Value, here: Part, whole: Value, ident: int) -> Node:
    numbers = (here.dim, here.start) if here.selected else (here.dim, here.start, here.stop)
    return Node(
        ident, f"{node.name}.before.{piece.index}", Op(_READ[here.selected]), (whole, *numbers), (),
        (graph.type(piece),), (whole,), origin=node.origin,
    )  # fmt: skip


_READ = {False: "aten.slice.Tensor", True: "aten.select.int"}


def _writers(graph: Graph, value: Value) -> Iterator[Node]:
    """Yield what wrote a part into a tensor last, then what did into that one, and so on."""
    while (node := graph.node.get(value.node)) is not None and node.op.name in WRITES:
        yield node
        base = node.args[0]
        assert isinstance(base, Value)
        value = base


def _part(graph: Graph, node: Node, kinds: dict[str, int]) -> Part | None:
    """Return the part that a node reads or writes; None for another node, or what is not known to be one."""
    at = kinds.get(node.op.name)
    if at is None or node.kwargs:
        return None
    numbers = node.args[at:]
    if not all(isinstance(number, int) for number in numbers):
        return None
    whole = node.args[0]
    assert isinstance(whole, Value)
    shape = graph.tensor_type(whole).shape
    dim, start, *rest = (int(number) for number in numbers if isinstance(number, int))
    length = shape[dim]
    start += length if start < 0 else 0
    if "select" in node.op.name:
        return Part(dim % len(shape), start, start + 1, True)
    stop, step = (*rest, *(length, 1)[len(rest) :])[:2]
    stop += length if stop < 0 else 0
    return (
        None
        if step != 1
        else Part(dim % len(shape), min(max(start, 0), length), min(max(stop, 0), length), False)
    )


def _is_as_good(graph: Graph, piece: Value, written: Value) -> bool:
    """Whether all that read a piece may read what was written there, which lies in memory without gaps."""
    kind, made = graph.tensor_type(written), graph.tensor_type(piece)
    if (kind.shape, kind.dtype) != (made.shape, made.dtype) or not kind.is_contiguous:
        return False
    if piece in graph.results:
        return False
    return all(_reads_gaps(graph.node[reader]) for reader in graph.users.get(piece, ()))


def _reads_gaps(reader: Node) -> bool:
    """Whether a node computes the same of an operand with and without gaps, and lays it out the same."""
    plain = all(isinstance(kind, TensorType) and kind.is_contiguous for kind in reader.types)
    scaled = any(name == "alpha" for name, _ in reader.kwargs) or len(reader.args) > 3
    return plain and reader.op.name in EXACT and not scaled
