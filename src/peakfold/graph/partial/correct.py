"""Corrections: the boxes in which a mutant differs are computed by the original, and written over it."""

from collections.abc import Sequence
from itertools import groupby

from peakfold.graph.partial.boxes import Box, failing
from peakfold.graph.partial.program import Program, apply


def corrected(original: Program, mutant: Program, seed: int = 0, fuse: bool = True) -> Program:
    """Return a mutant with what differs computed by the original.

    Args:
        original: what is to be computed.
        mutant: of the same shape, which may differ in some boxes.
        seed: of the test of the boxes.
        fuse: join boxes that touch, and compute those of one shape in one operator.

    Example:
        >>> from peakfold.graph.partial.program import apply, given
        >>> x, w = given("x", 2, 1, 4, 4), given("w", 1, 1, 3, 3)
        >>> how = dict(pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1))
        >>> conv = apply("conv", x, w, **how)
        >>> wide = apply("unfold", apply("conv", apply("fold", x, axis=3), w, **how), axis=3, parts=2)
        >>> corrected(conv, wide).steps < corrected(conv, wide, fuse=False).steps
        True
    """
    wrong = failing(original, mutant, seed)
    if not wrong:
        return mutant
    wrong = joined(wrong) if fuse else wrong
    parts = [restricted(original, box) for box in wrong]
    parts = _stacked(parts) if fuse else parts
    corners = tuple(low for box in wrong for low, _ in box)
    return apply("place", mutant, *parts, corners=corners)


def joined(boxes: Sequence[Box]) -> list[Box]:
    """Return boxes that cover the same, those that touch along one dimension joined.

    Example:
        >>> joined([((0, 1), (0, 2)), ((1, 3), (0, 2)), ((5, 6), (0, 2))])
        [((0, 3), (0, 2)), ((5, 6), (0, 2))]
    """
    found = list(boxes)
    for axis in reversed(range(len(found[0]) if found else 0)):
        rest = {box: (*box[:axis], *box[axis + 1 :]) for box in found}
        ordered = sorted(found, key=lambda box: (rest[box], box[axis]))
        found = []
        for _, group in groupby(ordered, key=rest.__getitem__):
            found += _runs(list(group), axis)
    return sorted(found)


def _runs(boxes: list[Box], axis: int) -> list[Box]:
    runs = [boxes[0]]
    for box in boxes[1:]:
        low, high = runs[-1][axis]
        if box[axis][0] == high:
            runs[-1] = (*box[:axis], (low, box[axis][1]), *box[axis + 1 :])
        else:
            runs.append(box)
    return runs


def restricted(program: Program, box: Box) -> Program:
    """Return the part of a program's result in a box, from the parts of its operands that it reads."""
    whole = tuple((0, n) for n in program.shape)
    if box == whole:
        return program
    if program.op == "conv":
        return _convolution(program, box)
    if program.op == "matmul":
        a, b = program.args
        rows, columns = restricted(a, (box[0], (0, a.shape[1]))), restricted(b, ((0, b.shape[0]), box[1]))
        return apply("matmul", rows, columns)
    if program.op == "add":
        return apply("add", *(restricted(arg, box) for arg in program.args))
    return cut(program, box)


def cut(program: Program, box: Box) -> Program:
    """Return slices of a program's result."""
    for axis, (low, high) in enumerate(box):
        if (low, high) != (0, program.shape[axis]):
            program = apply("slice", program, axis=axis, start=low, stop=high, step=1)
    return program


def _convolution(program: Program, box: Box) -> Program:
    x, w = program.args
    pad, stride, dilation = (program.numbers(name) for name in ("pad", "stride", "dilation"))
    reads: list[tuple[int, int]] = []
    pads: list[int] = []
    for i in (0, 1):
        low, high = box[2 + i]
        first = low * stride[i] - pad[2 * i]
        last = (high - 1) * stride[i] - pad[2 * i] + dilation[i] * (w.shape[2 + i] - 1) + 1
        inside = max(first, 0), min(last, x.shape[2 + i])
        if inside[0] >= inside[1]:
            return cut(program, box)
        reads.append(inside)
        pads += [inside[0] - first, last - inside[1]]
    part = restricted(x, (box[0], (0, x.shape[1]), *reads))
    kernel = restricted(w, (box[1], *((0, n) for n in w.shape[1:])))
    return apply("conv", part, kernel, pad=tuple(pads), stride=stride, dilation=dilation)


def _stacked(parts: list[Program]) -> list[Program]:
    """Compute convolutions of one shape by one kernel as one, their images behind one another."""
    groups: dict[object, list[int]] = {}
    for i, part in enumerate(parts):
        if part.op == "conv":
            groups.setdefault((part.args[0].shape[1:], part.args[1], part.attrs), []).append(i)
    found = list(parts)
    for members in groups.values():
        if len(members) > 1:
            for i, part in zip(members, _together([parts[i] for i in members]), strict=True):
                found[i] = part
    return found


def _together(parts: list[Program]) -> list[Program]:
    first = parts[0]
    images = apply("concat", *(part.args[0] for part in parts), axis=0)
    whole = Program("conv", (images, first.args[1]), first.attrs)
    found, start = [], 0
    for part in parts:
        found.append(apply("slice", whole, axis=0, start=start, stop=start + part.shape[0], step=1))
        start += part.shape[0]
    return found
