"""The nodes at the borders of a region: slices of what it reads, places and sums of what it makes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from peakfold.ir.graph import Arg, Node, Op, Origin, Symbol, Value
from peakfold.ir.types import TensorType, Type, contiguous_strides
from peakfold.plan.fission.derived import Term, Which
from peakfold.plan.fission.part import part_type
from peakfold.plan.fission.rows import Rows, rows_of
from peakfold.plan.fission.states import Combine, Factor, Margin

PLACE = "aten.slice_scatter.default"
COPY = "aten.copy.default"
VIEW = "aten.view.default"
CLONE = "aten.clone.default"
COMBINES: dict[Combine, str] = {
    "sum": "aten.add.Tensor",
    "max": "aten.maximum.default",
    "min": "aten.minimum.default",
    "prod": "aten.mul.Tensor",
    "all": "aten.logical_and.default",
    "any": "aten.logical_or.default",
    "logaddexp": "aten.logaddexp.default",
}
ORIGIN = Origin(phase="update")
"""Borders that write are updates: they run as soon as they can, and are never computed again."""


@dataclass
class Names:
    """Fresh ids and names.

    Attributes:
        next: the id that comes next.
        taken: names that are used.
    """

    next: int
    taken: set[str]

    def id(self) -> int:
        """Return a fresh id."""
        self.next += 1
        return self.next - 1

    def name(self, wanted: str) -> str:
        """Return a name like the one that is wanted, and take it."""
        found, count = wanted, 1
        while found in self.taken:
            count += 1
            found = f"{wanted}.{count}"
        self.taken.add(found)
        return found


def view_node(names: Names, name: str, operator: str, args: tuple[Arg, ...], kind: TensorType) -> Node:
    """Return a view of its first argument."""
    of = args[0]
    assert isinstance(of, Value)
    return Node(names.id(), names.name(name), Op(operator), args, (), (kind,), (of,))


def sliced(
    names: Names,
    name: str,
    of: Value,
    kind: TensorType,
    factor: Factor,
    part: "Place",
    margin: Margin,
    *,
    dense: bool = False,
) -> Iterator[Node]:
    """Yield the nodes that take a part of a whole tensor; the last one is the part.

    Args:
        names: fresh ids and names.
        name: of the whole.
        of: the whole.
        kind: its type.
        factor: what is split.
        part: which part.
        margin: what is taken beyond it.
        dense: whether what reads it needs a tensor without gaps.
    """
    d = factor.dim
    if factor.outer == 1:
        rows = rows_of(factor, margin)
        most = max(rows.counts(part))
        cut = _slice(names, name, of, d, resized(kind, d, most), part, rows)
        yield cut
        if dense and not _is_outermost(kind, d):
            more = most - part.size * factor.inner
            yield _dense(names, name, cut.outputs[0], part_type(kind, factor, part.size, more))
        return
    opened = view_node(
        names, f"{name}.open", VIEW, (of, unfolded(kind, factor).shape), unfolded(kind, factor)
    )
    yield opened
    narrow = resized(unfolded(kind, factor), d + 1, part.size)
    plain = Rows(Term("start"), Term("stop"))
    cut = _slice(names, f"{name}.cut", opened.outputs[0], d + 1, narrow, part, plain)
    yield cut
    packed = replace(narrow, strides=contiguous_strides(narrow.shape))
    memory_format = (("memory_format", Symbol("memory_format", "contiguous_format")),)
    copy = Node(
        names.id(), names.name(f"{name}.dense"), Op(CLONE), cut.outputs, memory_format, (packed,), (None,)
    )
    yield copy
    shape = resized(kind, d, factor.outer * part.size * factor.inner).shape
    sizes = (*shape[:d], -1, *shape[d + 1 :])
    folded = replace(kind, shape=shape, strides=contiguous_strides(shape))
    yield view_node(names, f"{name}.part", VIEW, (copy.outputs[0], sizes), folded)


def _is_outermost(kind: TensorType, dim: int) -> bool:
    """Whether a dimension steps over all others in memory, so that a slice of it has no gaps."""
    own = kind.strides[dim]
    return all(stride <= own for stride, length in zip(kind.strides, kind.shape, strict=True) if length > 1)


def _dense(names: Names, name: str, of: Value, kind: Type) -> Node:
    """A copy without gaps, laid out as the whole is."""
    memory_format = (("memory_format", Symbol("memory_format", "preserve_format")),)
    return Node(names.id(), names.name(f"{name}.dense"), Op(CLONE), (of,), memory_format, (kind,), (None,))


@dataclass(frozen=True)
class Place:
    """Which part: its size, and the numbers that say where it begins and ends.

    Attributes:
        size: of the largest part.
        length: of all parts.
        numbers: gives the Value of a number: ``numbers("start", times)``.
    """

    size: int
    length: int
    numbers: "NumberOf"

    def each(self, *terms: Term) -> list[int]:
        """Return a sum of terms in every part."""
        ends = [(start, min(start + self.size, self.length)) for start in range(0, self.length, self.size)]
        return [sum(term.sign * term.at(*end) for term in terms) for end in ends]

    def cut(self, kind: TensorType, factor: Factor) -> TensorType:
        """Return the type of a part without margin."""
        return resized(kind, factor.dim, factor.outer * self.size * factor.inner)

    def arg(self, *terms: Term) -> Arg:
        """Return a sum of terms as an argument: a number where it is the same in all parts."""
        found = set(self.each(*terms))
        return found.pop() if len(found) == 1 else self.numbers.sum(terms)


class NumberOf:
    """Host numbers of a body, made when they are first asked for."""

    def __init__(self, names: Names) -> None:
        """Begin with none."""
        self.ids: dict[tuple[Term, ...], int] = {}
        self._names = names

    def __call__(self, of: Which, times: int = 1) -> Value:
        """Return the number ``times * of``."""
        return self.sum((Term(of, times),))

    def sum(self, terms: tuple[Term, ...]) -> Value:
        """Return a sum of terms."""
        if terms not in self.ids:
            self.ids[terms] = self._names.id()
        return Value(self.ids[terms])


def _slice(names: Names, name: str, of: Value, dim: int, narrow: TensorType, part: Place, rows: Rows) -> Node:
    ends = (part.numbers.sum((rows.low,)), part.numbers.sum((rows.high,)))
    return view_node(names, f"{name}.part", "aten.slice.Tensor", (of, dim, *ends), narrow)


def resized(kind: TensorType, dim: int, length: int) -> TensorType:
    """Return a type with another length of one dimension, and the same strides."""
    return replace(kind, shape=(*kind.shape[:dim], length, *kind.shape[dim + 1 :]))


def unfolded(kind: TensorType, factor: Factor) -> TensorType:
    """Return a type with the dimension of a factor as three: outer, the factor, inner.

    Example:
        >>> from peakfold.ir.types import tensor
        >>> found = unfolded(tensor(12, 2), Factor(0, 2, 3, 2))
        >>> found.shape, found.strides
        ((2, 3, 2, 2), (12, 4, 2, 1))
    """
    d, stride = factor.dim, kind.strides[factor.dim]
    lengths = (factor.outer, factor.length, factor.inner)
    steps = (factor.length * factor.inner * stride, factor.inner * stride, stride)
    shape = (*kind.shape[:d], *lengths, *kind.shape[d + 1 :])
    return replace(kind, shape=shape, strides=(*kind.strides[:d], *steps, *kind.strides[d + 1 :]))


def placed(
    names: Names,
    name: str,
    whole: Value,
    made: Value,
    kinds: tuple[TensorType, TensorType],
    factor: Factor,
    part: Place,
) -> Iterator[Node]:
    """Yield the nodes that write a part into its place of a whole tensor; the last one is the whole.

    Args:
        names: fresh ids and names.
        name: of the whole.
        whole: what it is so far.
        made: the part.
        kinds: types of whole and part.
        factor: what is split.
        part: which part.
    """
    d, (kind, own) = factor.dim, kinds
    if factor.outer == 1:
        ends = (part.numbers("start", factor.inner), part.numbers("stop", factor.inner))
        yield _writer(names, f"{name}.placed", PLACE, (whole, made, d, *ends), kind)
        return
    wide = unfolded(kind, factor)
    mine = unfolded(own, replace(factor, length=part.size))
    sizes = (*mine.shape[: d + 1], -1, *mine.shape[d + 2 :])
    opened = view_node(names, f"{name}.open", VIEW, (whole, wide.shape), wide)
    piece = view_node(names, f"{name}.piece", VIEW, (made, sizes), mine)
    ends = (part.numbers("start"), part.numbers("stop"))
    written = _writer(
        names, f"{name}.placed", PLACE, (opened.outputs[0], piece.outputs[0], d + 1, *ends), wide
    )
    closed = view_node(names, f"{name}.whole", VIEW, (written.outputs[0], kind.shape), kind)
    yield from (opened, piece, written, closed)


def combined(
    names: Names, name: str, whole: Value, made: Value, kind: TensorType, how: Combine | None
) -> Node:
    """Return the node that adds a part's share to those before; None: each part makes the same."""
    word = "same" if how is None else how
    return _writer(names, f"{name}.{word}", COPY if how is None else COMBINES[how], (whole, made), kind)


def _writer(names: Names, name: str, operator: str, args: tuple[Arg, ...], kind: TensorType) -> Node:
    return Node(names.id(), names.name(name), Op(operator), args, (), (kind,), (None,), None, ORIGIN)
