"""Arithmetic of strided views: what `view` makes of strides, and in which order results lie in memory."""

from collections.abc import Sequence
from math import prod

from peakfold.ir.types import TensorType, contiguous_strides

Shape = tuple[int, ...]


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that shapes broadcast to.

    Raises:
        ValueError: they do not fit.

    Example:
        >>> broadcast([(3, 1), (4,)])
        (3, 4)
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for i, length in enumerate(shape, rank - len(shape)):
            if length != 1 and result[i] not in (1, length):
                raise ValueError(f"{shape} does not broadcast")
            result[i] = length if length != 1 else result[i]
    return tuple(result)


def expanded(kind: TensorType, shape: Shape) -> Shape:
    """Return the strides of a tensor expanded to a shape.

    Example:
        >>> from peakfold.ir.types import tensor
        >>> expanded(tensor(3, 1), (2, 3, 4))
        (0, 1, 0)
    """
    lead = len(shape) - len(kind.shape)
    pairs = zip(kind.shape, kind.strides, shape[lead:], strict=True)
    strides = tuple(stride if length == wanted else 0 for length, stride, wanted in pairs)
    return (0,) * lead + strides


def viewed(kind: TensorType, shape: Shape) -> Shape | None:
    """Return the strides of a tensor viewed in a shape, None where that needs a copy.

    Example:
        >>> from peakfold.ir.types import tensor
        >>> viewed(tensor(2, 6), (2, 3, 2)), viewed(tensor(2, 6, strides=(1, 2)), (12,))
        ((6, 2, 1), None)
    """
    if prod(shape) != kind.numel:
        return None
    if kind.numel == 0:
        return kind.strides if kind.shape == shape else contiguous_strides(shape)
    if not kind.shape:
        return (1,) * len(shape)
    strides = [0] * len(shape)
    at = len(shape) - 1
    base = kind.strides[-1]
    chunk = wanted = 1
    for i in range(len(kind.shape) - 1, -1, -1):
        chunk *= kind.shape[i]
        ends = i == 0 or (kind.shape[i - 1] != 1 and kind.strides[i - 1] != chunk * base)
        if not ends:
            continue
        while at >= 0 and (wanted < chunk or shape[at] == 1):
            strides[at] = wanted * base
            wanted *= shape[at]
            at -= 1
        if wanted != chunk:
            return None
        if i > 0:
            base, chunk, wanted = kind.strides[i - 1], 1, 1
    return tuple(strides) if at == -1 else None


def pointwise(kinds: Sequence[TensorType], shape: Shape) -> Shape:
    """Return the strides of a fresh result of a pointwise operator, as torch's TensorIterator lays it out.

    Example:
        >>> from peakfold.ir.types import tensor
        >>> pointwise([tensor(2, 3, strides=(1, 2)), tensor(3)], (2, 3))
        (1, 2)
    """
    rows = [expanded(kind, shape) for kind in kinds]
    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(shape)):
        inner = i
        for outer in range(i - 1, -1, -1):
            swap = _compared(order[outer], order[inner], rows, shape)
            if swap < 0:
                break
            if swap > 0:
                order[outer], order[inner] = order[inner], order[outer]
                inner = outer
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def _compared(first: int, second: int, rows: Sequence[Shape], shape: Shape) -> int:
    """Return 1 where a dimension must lie outside of another one, -1 where inside, 0 where nothing says."""
    for row in rows:
        a, b = row[first], row[second]
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if shape[first] > shape[second]:
            return 1
    return 0
