"""Operators that only move elements: views, copies, concatenations."""

from collections.abc import Iterator, Mapping

from peakfold.ir.graph import Symbol
from peakfold.ops.links.model import Axis, Call, Factor, Links, Rule, Slot, whole
from peakfold.ops.links.notation import Groups, axis, broadcast, grouped, regroup

FIRST = (frozenset({0}),)


def moved(call: Call, to: Mapping[int, int]) -> Links:
    """Return links of dimensions of operand 0 to dimensions of output 0 of the same length."""
    shape = call.shape(0)
    axes = [
        axis([Slot(0, whole(dim, shape[dim]))], [Slot(0, whole(out, shape[dim]))], None)
        for dim, out in to.items()
        if shape[dim] > 1
    ]
    return Links(tuple(axes), FIRST, moves=True)


def view(call: Call) -> Links:
    """Links of a reshape: the factors that both shapes have; another dtype's view has none."""
    if isinstance(call.arg(1), Symbol):
        return Links()
    pairs = regroup(call.shape(0), call.out())
    return Links(tuple(axis([Slot(0, a)], [Slot(0, b)], None) for a, b in pairs), FIRST, moves=True)


def same(call: Call) -> Links:
    """Links of an operator whose output has the operand's shape."""
    return moved(call, {dim: dim for dim in range(len(call.shape(0)))})


def transpose(call: Call) -> Links:
    """Links of ``transpose(x, a, b)`` and of ``t(x)``."""
    dims = len(call.shape(0))
    if dims < 2:
        return same(call)
    first, second = call.number(1, 0) % dims, call.number(2, 1) % dims
    swap = {first: second, second: first}
    return moved(call, {dim: swap.get(dim, dim) for dim in range(dims)})


def permute(call: Call) -> Links:
    """Links of ``permute(x, dims)``."""
    dims = len(call.shape(0))
    return moved(call, {dim % dims: out for out, dim in enumerate(call.numbers(1))})


def unsqueeze(call: Call) -> Links:
    """Links of ``unsqueeze(x, dim)``."""
    new = call.number(1) % len(call.out())
    return moved(call, {dim: dim + (dim >= new) for dim in range(len(call.shape(0)))})


def squeeze(call: Call) -> Links:
    """Links of ``squeeze``: dimensions that are longer than 1 keep their order."""
    return view(call)


def select(call: Call) -> Links:
    """Links of ``select(x, dim, index)``."""
    gone = call.number(1) % len(call.shape(0))
    dims = [dim for dim in range(len(call.shape(0))) if dim != gone]
    return moved(call, {dim: out for out, dim in enumerate(dims)})


def expand(call: Call) -> Links:
    """Links of ``expand(x, sizes)``: an axis that the operand lacks is made."""
    return Links(tuple(broadcast(call, (0,), range(len(call.out())))), FIRST, moves=True)


def repeat(call: Call) -> Links:
    """Links of ``repeat(x, times)``: each dimension is one that is made, outside one of the operand."""
    return Links(tuple(_repeated(call)), FIRST, moves=True)


def _repeated(call: Call) -> Iterator[Axis]:
    shape, out = call.shape(0), call.out()
    for dim, total in enumerate(out):
        source = dim - (len(out) - len(shape))
        length = shape[source] if source >= 0 else 1
        if length > 1:
            times = total // length
            yield axis([Slot(0, whole(source, length))], [Slot(0, Factor(dim, times, length, 1))], None)
        if length and total > length:
            yield axis([], [Slot(0, Factor(dim, 1, total // length, length))], None)


def along(position: int, *, default: int = 0, linear: Groups = ((0,),), moves: bool = True) -> Rule:
    """Return the rule of an operator that treats each place of every other dimension alike.

    Operands have as many dimensions as the outputs; those of other length than the output's are whole.

    Args:
        position: of the argument that names the dimension.
        default: the dimension where that is left out.
        linear: sets of argument positions in which it is linear.
        moves: whether it only moves elements.
    """

    def rule(call: Call) -> Links:
        dims = len(call.out())
        gone = call.number(position, default) % dims if dims else 0
        kept = [dim for dim in range(dims) if dim != gone]
        axes = tuple(_across(call, kept))
        return Links(axes, grouped(call, linear), moves=moves)

    return rule


def _across(call: Call, dims: list[int]) -> Iterator[Axis]:
    shape = call.out()
    for dim in dims:
        length = shape[dim]
        places = [(index, call.shape(index)) for index in range(len(call.types))]
        fits = all(own[dim] == length for _, own in places if len(own) == len(shape))
        if length > 1 and fits:
            ins = [Slot(index, whole(dim, length)) for index, own in places if len(own) == len(shape)]
            outs = [Slot(index, whole(dim, length)) for index in range(len(call.node.types))]
            yield axis(ins, outs, None)


def cat(call: Call) -> Links:
    """Links of ``cat(tensors, dim)``: linear in all of them together."""
    gone = call.number(1) % len(call.out())
    operands = call.listed(0)
    kept = [dim for dim in range(len(call.out())) if dim != gone]
    return Links(tuple(_across(call, kept)), (frozenset(operands),), moves=len(operands) == 1)


def stack(call: Call) -> Links:
    """Links of ``stack(tensors, dim)``."""
    new = call.number(1) % len(call.out())
    operands = call.listed(0)
    shape = call.shape(operands[0])
    axes = [
        axis(
            [Slot(index, whole(dim, length)) for index in operands],
            [Slot(0, whole(dim + (dim >= new), length))],
            None,
        )
        for dim, length in enumerate(shape)
        if length > 1
    ]
    return Links(tuple(axes), (frozenset(operands),))


def unbind(call: Call) -> Links:
    """Links of ``unbind(x, dim)``: every output has the other dimensions."""
    shape = call.shape(0)
    gone = call.number(1) % len(shape)
    kept = [dim for dim in range(len(shape)) if dim != gone]
    outputs = range(len(call.node.types))
    axes = [
        axis([Slot(0, whole(dim, shape[dim]))], [Slot(o, whole(out, shape[dim])) for o in outputs], None)
        for out, dim in enumerate(kept)
        if shape[dim] > 1
    ]
    return Links(tuple(axes), FIRST, moves=True)


def made(call: Call) -> Links:
    """Links of what is made from a size and a number: every axis is made."""
    shape = call.out()
    axes = [axis([], [Slot(0, whole(dim, length))], None) for dim, length in enumerate(shape) if length > 1]
    return Links(tuple(axes), unread=frozenset(range(len(call.types))))


def select_backward(call: Call) -> Links:
    """Links of ``select_backward(grad, sizes, dim, index)``."""
    dims = len(call.out())
    gone = call.number(2) % dims
    kept = [dim for dim in range(dims) if dim != gone]
    return moved(call, dict(enumerate(kept)))


def select_scatter(call: Call) -> Links:
    """Links of ``select_scatter(x, source, dim, index)``."""
    shape = call.out()
    gone = call.number(2) % len(shape)
    axes = [
        axis(
            [Slot(0, whole(dim, length)), Slot(1, whole(dim - (dim > gone), length))],
            [Slot(0, whole(dim, length))],
            None,
        )
        for dim, length in enumerate(shape)
        if dim != gone and length > 1
    ]
    return Links(tuple(axes), (frozenset({0, 1}),))


def pad(call: Call) -> Links:
    """Links of ``constant_pad_nd(x, pad, value)``: what is not padded; linear where it pads with 0."""
    dims, padding = len(call.out()), call.numbers(1)
    kept = [dim for dim in range(dims) if not any(padding[2 * (dims - 1 - dim) : 2 * (dims - dim)])]
    axes = tuple(_across(call, kept))
    return Links(axes, FIRST if call.arg(2, 0) == 0 else ())


def roll(call: Call) -> Links:
    """Links of ``roll(x, shifts, dims)``: without dims it goes through all of them."""
    dims = len(call.out())
    gone = {dim % dims for dim in call.numbers(2)} if dims else set()
    kept = [dim for dim in range(dims) if gone and dim not in gone]
    return Links(tuple(_across(call, kept)), FIRST, moves=True)
