"""Rules in one line: an einsum-like notation, and the families that most operators belong to."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from peakfold.ops.links.model import Axis, Call, Combine, Factor, Links, Rule, Slot, whole

Groups = tuple[tuple[int, ...], ...]
"""Sets of argument positions."""


def links(spec: str, *, linear: Groups = (), added: tuple[int, ...] = (), combine: Combine = "sum") -> Rule:
    """Return the rule that a line says.

    ``"m k, k n -> m n"``: arguments left of the arrow in their order, outputs right of it; a name is an
    axis, ``.`` a dimension that cannot be split, ``...`` any number of dimensions aligned at their last,
    ``_`` an argument that is no tensor. An argument may be left out or None. An axis without a place in
    an output leaves parts of it, which are combined.

    Args:
        spec: the line.
        linear: sets of argument positions in which the operator is linear.
        added: argument positions that are added once.
        combine: how parts are combined.
    """
    left, _, right = spec.partition("->")
    operands = [item.split() for item in left.split(",")]
    outputs = [item.split() for item in right.split(",")]

    def rule(call: Call) -> Links | None:
        found: dict[str, tuple[list[Slot], list[Slot]]] = {}
        for position, names in enumerate(operands):
            index = call.operand(position)
            if index is None or names == ["_"]:
                continue
            if not _collect(found, names, index, call.shape(index), 0):
                return None
        for index, names in enumerate(outputs):
            if not _empty(call, index) and not _collect(found, names, index, call.out(index), 1):
                return None
        axes = tuple(
            axis(ins, outs, combine) for name, (ins, outs) in found.items() if _even(ins, outs) and name
        )
        return Links(axes, grouped(call, linear), _present(call, added))

    return rule


def axis(operands: Iterable[Slot], outputs: Iterable[Slot], combine: Combine | None = "sum") -> Axis:
    """Return an axis."""
    return Axis(tuple(operands), tuple(outputs), combine)


def pointwise(*, linear: Groups = (), but: int | None = None) -> Rule:
    """Return the rule of an operator that works element by element, operands broadcast.

    Args:
        linear: sets of argument positions in which it is linear.
        but: position of the argument that names a dimension along which it does more than that.
    """

    def rule(call: Call) -> Links:
        dims = len(call.out())
        left_out = _without(call, but, dims)
        kept = [dim for dim in range(dims) if dim not in left_out]
        operands = range(len(call.types))
        return Links(tuple(broadcast(call, operands, kept)), grouped(call, linear))

    return rule


def broadcast(call: Call, operands: Iterable[int], dims: Iterable[int]) -> Iterator[Axis]:
    """Yield the axes of outputs of one shape, of operands that are aligned at their last dimension."""
    shape = call.out()
    outputs = [index for index in range(len(call.node.types)) if call.out(index) == shape]
    shapes = [(index, call.shape(index)) for index in operands]
    for dim in dims:
        length = shape[dim]
        if length == 1:
            continue
        back = len(shape) - dim
        ins = [
            Slot(index, whole(len(own) - back, length))
            for index, own in shapes
            if len(own) >= back and own[-back] == length
        ]
        outs = [Slot(index, whole(dim, length)) for index in outputs]
        yield axis(ins, outs, None)


def reduction(combine: Combine | None, *, linear: Groups = (), dims: int | None = 1, keep: int = 2) -> Rule:
    """Return the rule of a reduction.

    Args:
        combine: how results over parts of a reduced dimension make the whole; None where they do not.
        linear: sets of argument positions in which it is linear.
        dims: position of the argument that names the reduced dimensions; None: all of them.
        keep: position of the argument that keeps them with length 1.
    """

    def rule(call: Call) -> Links:
        shape = call.shape(0)
        gone = reduced(call, dims, len(shape))
        held = bool(call.arg(keep)) or bool(call.keyword("keepdim")) or len(call.out()) == len(shape)
        return Links(tuple(_reduced_axes(call, gone, held, combine)), grouped(call, linear))

    return rule


def reduced(call: Call, position: int | None, dims: int) -> frozenset[int]:
    """Return the dimensions that an argument names; all where it is empty or left out."""
    named = () if position is None else call.numbers(position)
    return frozenset(dim % dims for dim in named) if named and dims else frozenset(range(dims))


def _reduced_axes(call: Call, gone: frozenset[int], held: bool, combine: Combine | None) -> Iterator[Axis]:
    shape = call.shape(0)
    place = 0
    for dim, length in enumerate(shape):
        kept = dim not in gone
        outs = [Slot(index, whole(place, length)) for index in range(len(call.node.types))] if kept else []
        if length > 1 and (kept or combine is not None):
            yield axis([Slot(0, whole(dim, length))], outs, combine)
        place += kept or held


def regroup(source: tuple[int, ...], target: tuple[int, ...]) -> Iterator[tuple[Factor, Factor]]:
    """Yield the factors that two shapes of the same elements have in common, innermost first.

    Example:
        >>> for pair in regroup((6, 4), (2, 3, 4)):
        ...     print(*pair)
        Factor(dim=1, outer=1, length=4, inner=1) Factor(dim=2, outer=1, length=4, inner=1)
        Factor(dim=0, outer=2, length=3, inner=1) Factor(dim=1, outer=1, length=3, inner=1)
        Factor(dim=0, outer=1, length=2, inner=3) Factor(dim=0, outer=1, length=2, inner=1)
    """
    if 0 in source or 0 in target:
        return
    ends = sorted({*_products(source), *_products(target)})
    for low, high in pairwise(ends):
        here, there = _factor(source, low, high), _factor(target, low, high)
        if here is not None and there is not None:
            yield here, there


def _products(shape: tuple[int, ...]) -> list[int]:
    found = [1]
    for length in reversed(shape):
        found.append(found[-1] * length)
    return found


def _factor(shape: tuple[int, ...], low: int, high: int) -> Factor | None:
    """The factor whose places are ``low`` apart, up to ``high``; None where a dimension cuts it."""
    step = 1
    for dim in reversed(range(len(shape))):
        end = step * shape[dim]
        if low >= step and high <= end and shape[dim] > 1:
            fits = not low % step and not high % low and not end % high
            return Factor(dim, end // high, high // low, low // step) if fits else None
        step = end
    return None


def _collect(
    found: dict[str, tuple[list[Slot], list[Slot]]],
    names: list[str],
    index: int,
    shape: tuple[int, ...],
    side: int,
) -> bool:
    named = _spread(names, len(shape))
    if named is None:
        return False
    for dim, name in enumerate(named):
        if name != "." and shape[dim] > 1:
            found.setdefault(name, ([], []))[side].append(Slot(index, whole(dim, shape[dim])))
    return True


def _spread(names: list[str], dims: int) -> list[str] | None:
    """Names of each of ``dims`` dimensions; those of ``...`` are numbered from its end."""
    if "..." not in names:
        return names if len(names) == dims else None
    at, more = names.index("..."), dims - len(names) + 1
    middle = [f"...{more - k}" for k in range(more)]
    return names[:at] + middle + names[at + 1 :]


def _even(operands: list[Slot], outputs: list[Slot]) -> bool:
    return len({slot.factor.length for slot in (*operands, *outputs)}) == 1


def _without(call: Call, position: int | None, dims: int) -> frozenset[int]:
    if position is None or not dims:
        return frozenset()
    return frozenset(dim % dims for dim in call.numbers(position))


def grouped(call: Call, groups: Groups) -> tuple[frozenset[int], ...]:
    """Sets of operands from sets of positions; a set with a plain number in it is none: it is added."""
    found = []
    for group in groups:
        operands = [call.operand(position) for position in group]
        if None not in operands:
            found.append(frozenset(index for index in operands if index is not None))
    return tuple(found)


def _present(call: Call, positions: tuple[int, ...]) -> frozenset[int]:
    return frozenset(index for index in map(call.operand, positions) if index is not None)


def _empty(call: Call, index: int) -> bool:
    return 0 in call.out(index)
