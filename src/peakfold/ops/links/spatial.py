"""Rules of operators that slide a window over rows and columns: parts share the rows at their borders."""

from collections.abc import Iterator
from dataclasses import replace

from peakfold.ir.types import TensorType
from peakfold.ops.links.model import Axis, Call, Factor, Halo, Links, Rule, Slot, whole
from peakfold.ops.links.notation import axis
from peakfold.ops.links.windows import SPACE, Window, windows_of

CEIL = {"max_pool2d_with_indices": 5, "avg_pool2d": 4}
"""Position of the flag that a last window may reach beyond the operand."""


def convolved(call: Call) -> Iterator[Axis]:
    """Yield rows and columns of ``convolution(x, weight, bias, stride, padding, dilation, ..)``."""
    x, kernel = call.operand(0), call.operand(1)
    if x is None or kernel is None:
        return
    for dim, window in enumerate(windows_of(call.node, call.shape(kernel)[SPACE:]), SPACE):
        own, made = call.shape(x)[dim], call.out()[dim]
        if call.arg(6):
            yield from _spread(
                window, Slot(x, whole(dim, own)), Slot(0, Factor(dim, 1, own, window.stride)), made
            )
        else:
            yield from _read(window, Slot(x, whole(dim, own)), Slot(0, whole(dim, made)), own)


def weighed(call: Call) -> Iterator[Axis]:
    """Yield rows and columns of ``convolution_backward`` where it makes no gradient of its operand."""
    kernel = call.shape(2)
    bias = 0 not in call.out(2)
    if 0 not in call.out(0):
        return
    for dim, window in enumerate(windows_of(call.node, kernel[SPACE:]), SPACE):
        grad, x = call.shape(0)[dim], call.shape(1)[dim]
        read, across = (0, 1) if call.arg(7) else (1, 0)
        wide, narrow = (grad, x) if call.arg(7) else (x, grad)
        for found in _read(window, Slot(read, whole(dim, wide)), Slot(across, whole(dim, narrow)), wide):
            if not (call.arg(7) and bias and found.has_halo):
                yield axis((*found.operands, *found.outputs), ())


def max_pool(call: Call) -> Links:
    """Links of ``max_pool2d_with_indices``: samples, channels, rows."""
    kind = call.node.types[0]
    floats = isinstance(kind, TensorType) and kind.dtype.startswith(("float", "bfloat"))
    rows = tuple(_pooled(call, float("-inf"))) if floats else ()
    return Links((*_samples(call, (0,), 2), *(item for item in rows if _is_rows(call, item))))


def max_pool_backward(call: Call) -> Links:
    """Links of ``max_pool2d_with_indices_backward(grad, x, ..)``: rows where windows lie side by side."""
    return Links(
        (*_samples(call, tuple(range(3)), 1), *(i for i in _unpooled(call, (0, 2), 1) if _is_rows(call, i)))
    )


def avg_pool(call: Call) -> Links:
    """Links of ``avg_pool2d``: what is padded must count."""
    counted = call.arg(5, True) is not False and call.arg(6) is None
    rows = (item for item in _pooled(call, 0.0) if counted or not item.has_halo)
    return Links((*_samples(call, (0,), 1), *rows), (frozenset({0}),))


def avg_pool_backward(call: Call) -> Links:
    """Links of ``avg_pool2d_backward(grad, x, ..)``: rows and columns where windows lie side by side."""
    return Links((*_samples(call, (0, 1), 1), *_unpooled(call, (0,), 1)), (frozenset({0}),))


def padded(operands: int, position: int) -> Rule:
    """Return the rule of a padding, or its gradient: all but rows and columns that are added to.

    Args:
        operands: how many of them have rows.
        position: of the argument that says how many are added.
    """

    def rule(call: Call) -> Links:
        pads, shape = call.numbers(position), call.out()
        kept = [dim for dim in range(len(shape)) if not any(_pads(pads, len(shape), dim))]
        axes = (
            axis(
                [Slot(k, whole(dim, shape[dim])) for k in range(operands)], [Slot(0, whole(dim, shape[dim]))]
            )
            for dim in kept
            if shape[dim] > 1
        )
        return Links(tuple(axes), (frozenset({0}),))

    return rule


def _pads(pads: tuple[int, ...], dims: int, dim: int) -> tuple[int, ...]:
    at = 2 * (dims - 1 - dim)
    return pads[at : at + 2]


def _is_rows(call: Call, item: Axis) -> bool:
    """Indices count places of a plane row by row: a part of its rows begins further on."""
    return all(slot.factor.dim == len(call.out()) - 2 for slot in item.outputs)


def _samples(call: Call, operands: tuple[int, ...], outputs: int) -> Iterator[Axis]:
    for dim, length in enumerate(call.out()[:-SPACE]):
        if length > 1:
            ins = [Slot(index, whole(dim, length)) for index in operands]
            yield axis(ins, [Slot(index, whole(dim, length)) for index in range(outputs)], None)


def _pooled(call: Call, fill: float) -> Iterator[Axis]:
    first = len(call.out()) - SPACE
    for dim, window in enumerate(windows_of(call.node, call.numbers(1)), first):
        own, made = call.shape(0)[dim], call.out()[dim]
        if call.arg(CEIL[call.node.op.packet]) and window.read[1] < 0:
            continue
        slot = Slot(0, whole(dim, made))
        for found in _read(window, Slot(0, whole(dim, own)), slot, own, fill):
            outs = tuple(Slot(index, slot.factor) for index in range(len(call.node.types)))
            yield replace(found, outputs=outs)


def _unpooled(call: Call, across: tuple[int, ...], read: int) -> Iterator[Axis]:
    first = len(call.out()) - SPACE
    for dim, window in enumerate(windows_of(call.node, call.numbers(2)), first):
        grad, own = call.shape(0)[dim], call.shape(read)[dim]
        if grad > 1 and window.read == (0, 0) and own == grad * window.stride:
            wide = Factor(dim, 1, grad, window.stride)
            ins = [Slot(index, whole(dim, grad)) for index in across]
            yield axis([*ins, Slot(read, wide)], [Slot(0, wide)], None)


def _read(window: Window, read: Slot, across: Slot, own: int, fill: float = 0.0) -> Iterator[Axis]:
    """The axis of the places that windows begin at, which one operand is read around."""
    dim, length = read.factor.dim, across.factor.length
    before, after = window.read
    if length <= 1 or own != length * window.stride or window.padding > window.reach:
        return
    halo = Halo(before, max(after, 0), fill) if before or after > 0 else None
    wide = Slot(read.index, Factor(dim, 1, length, window.stride), halo)
    yield axis([wide], [across], None)


def _spread(window: Window, across: Slot, made: Slot, out: int) -> Iterator[Axis]:
    """The axis of the places that are spread, each over a window of the output."""
    length = across.factor.length
    if length <= 1 or out != length * window.stride:
        return
    before, after = window.spread
    halo = Halo(before, after, 0.0) if before or after else None
    yield axis([replace(across, halo=halo)], [made], None)
