"""What a rule of an operator says: which dimensions of operands and outputs run over the same axis."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from peakfold.ir.graph import Arg, Node, Value, values_in
from peakfold.ir.types import TensorType, Type

Combine = Literal["sum", "max", "min", "prod", "all", "any", "logaddexp"]


@dataclass(frozen=True, slots=True, order=True)
class Factor:
    """One factor of a dimension: dimension ``dim`` runs over ``outer * length * inner`` places.

    A part of it is a contiguous narrow where ``outer`` is 1, else a strided slice.

    Attributes:
        dim: the dimension, from 0.
        outer: places of the factors before this one in the dimension.
        length: places of this one: what is split.
        inner: places of the factors after it.

    Example:
        >>> rows = Factor(0, 1, 8, 16)  # of a dimension of 8 rows by 16
        >>> rows.within(Factor(0, 2, 4, 1)), rows.place(Factor(0, 2, 4, 16))
        (Factor(dim=0, outer=2, length=4, inner=16), Factor(dim=0, outer=2, length=4, inner=1))
    """

    dim: int
    outer: int
    length: int
    inner: int

    def within(self, part: "Factor") -> "Factor":
        """Return a factor of this factor as one of the dimension."""
        return Factor(self.dim, self.outer * part.outer, part.length, part.inner * self.inner)

    def place(self, factor: "Factor") -> "Factor | None":
        """Return a factor of the dimension as one of this factor (``dim`` 0); None where it is not inside."""
        inside = factor.dim == self.dim and not factor.inner % self.inner and not factor.outer % self.outer
        if not inside:
            return None
        return Factor(0, factor.outer // self.outer, factor.length, factor.inner // self.inner)


def whole(dim: int, length: int) -> Factor:
    """Return all of a dimension."""
    return Factor(dim, 1, length, 1)


@dataclass(frozen=True, slots=True)
class Halo:
    """What a part of an operand has beyond its own places: neighbours share it.

    To make places ``[a, b)`` of an axis, an operator reads ``[a * inner - before, b * inner + after)`` of a
    dimension that has ``inner`` places for each.

    Attributes:
        before: places before a part.
        after: places after it.
        fill: what stands where the operand has none, beyond its ends; None: a part ends there.
    """

    before: int
    after: int
    fill: float | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an axis runs in one operand or output.

    Attributes:
        index: of the operand among ``node.inputs``, or of the output.
        factor: its length is the axis's.
        halo: what is read of an operand beyond a part; None for no more than that.
    """

    index: int
    factor: Factor
    halo: Halo | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis that an operator runs over; it can be done in parts along it.

    An operand without the axis is read whole by each part.

    Attributes:
        operands: where it is in the operands.
        outputs: where it is in the outputs.
        combine: how parts of an output without it make the whole; None where they do not.
        same: outputs without it that each part makes whole.
        carry: how the last place of a part goes into all of the next one; None where parts are apart.
        counted: operands without the axis whose elements are places of it, as labels of classes: a part
            reads them from its own first place, and does not count those of other parts.
    """

    operands: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    combine: Combine | None = "sum"
    same: frozenset[int] = frozenset()
    carry: Combine | None = None
    counted: frozenset[int] = frozenset()

    @property
    def has_halo(self) -> bool:
        """Whether parts read beyond their own places."""
        return any(slot.halo is not None for slot in self.operands)

    def allows(self, place: Factor) -> bool:
        """Whether it can be split along a factor of itself.

        Parts with halos, and those whose places are counted, are stretches of neighbours.

        Example:
            >>> rows = Axis((Slot(0, whole(2, 8), Halo(1, 1, 0.0)),), (Slot(0, whole(2, 8)),), None)
            >>> rows.allows(Factor(0, 1, 4, 2)), rows.allows(Factor(0, 4, 2, 1))
            (True, False)
        """
        return place.outer == 1 or not (self.has_halo or self.counted)


@dataclass(frozen=True, slots=True)
class Links:
    """What may be done in parts at one node, and which partial results pass through it.

    Attributes:
        axes: every axis that it can be split along.
        linear: sets of operands (among ``node.inputs``) in which it is linear, the others held.
        added: operands that are added once to a sum over an axis that they lack.
        moves: it only moves elements of operand 0: partial results of any combination pass.
        unread: operands of which neither elements nor shape matter.
    """

    axes: tuple[Axis, ...] = ()
    linear: tuple[frozenset[int], ...] = ()
    added: frozenset[int] = frozenset()
    moves: bool = False
    unread: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Call:
    """A node and the types of what it reads.

    Attributes:
        node: the node.
        types: one for each of ``node.inputs``.
        positions: index among ``node.inputs`` of each positional argument that is a Value, else None.
    """

    node: Node
    types: tuple[Type, ...]
    positions: tuple[int | None, ...]

    @property
    def args(self) -> tuple[Arg, ...]:
        """Positional arguments."""
        return self.node.args

    def arg(self, position: int, default: Arg = None) -> Arg:
        """Return a positional argument, or its default where it is left out."""
        return self.node.args[position] if position < len(self.node.args) else default

    def number(self, position: int, default: int = 0) -> int:
        """Return an argument that is an integer."""
        found = self.arg(position, default)
        return found if isinstance(found, int) else default

    def numbers(self, position: int) -> tuple[int, ...]:
        """Return an argument that is a list of integers, or one."""
        found = self.arg(position, ())
        if isinstance(found, int):
            return (found,)
        return tuple(item for item in found if isinstance(item, int)) if isinstance(found, tuple) else ()

    def keyword(self, name: str) -> Arg:
        """Return a keyword argument, None where it is not given."""
        return dict(self.node.kwargs).get(name)

    def operand(self, position: int) -> int | None:
        """Return the index among ``node.inputs`` of a positional argument; None where it is no Value."""
        return self.positions[position] if position < len(self.positions) else None

    def listed(self, position: int) -> tuple[int, ...]:
        """Return the indices of the Values in an argument that is a list."""
        before = sum(1 for _ in values_in(self.node.args[:position]))
        return tuple(before + k for k, _ in enumerate(values_in((self.arg(position),))))

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of an operand; of a host number ``()``."""
        return shape_of(self.types[index])

    def out(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an output."""
        return shape_of(self.node.types[index])


Rule = Callable[[Call], Links | None]
"""What an operator allows; None: this call of it is a barrier."""


def call_of(node: Node, types: tuple[Type, ...]) -> Call:
    """Return a node with the types of its ``inputs``."""
    positions: list[int | None] = []
    count = 0
    for arg in node.args:
        if isinstance(arg, Value):
            positions.append(count)
            count += 1
            continue
        positions.append(None)
        count += sum(1 for _ in values_in((arg,))) if isinstance(arg, tuple) else 0
    return Call(node, types, tuple(positions))


def shape_of(kind: Type) -> tuple[int, ...]:
    """Return the shape of a type; of a host number ``()``."""
    return kind.shape if isinstance(kind, TensorType) else ()
