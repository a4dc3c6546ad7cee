"""Resizing by whole numbers of one image, taken apart: each row is repeated, or is the mean of as many.

The operators themselves take the size of what they make as numbers of their own; what stands for them moves
and sums elements, so that parts of rows come out whatever they share with their neighbours.
"""

from peakfold.ir.graph import Arg, Node, Symbol, Value
from peakfold.ir.types import TensorType, Type, contiguous_strides
from peakfold.ops.links.windows import SPACE
from peakfold.plan.fission.rebuild import Rebuild, dense

APART = (3, 5)
"""Dimensions of the places that belong to one, where rows and columns are split into these."""


def repeated(build: Rebuild, node: Node) -> bool:
    """Add what stands for ``upsample_nearest2d``; return False where it is by no whole number."""
    small, large = build.type(build.value(node.args[0])), node.types[0]
    times = _times(small, large, node.types[0])
    if times is None or not _is_exact(times) or not _is_even(node.args[2:], times):
        return False
    return _spread(build, node, build.value(node.args[0]), times)


def summed(build: Rebuild, node: Node) -> bool:
    """Add what stands for its gradient: the sum of what each place was repeated to."""
    large, small = build.type(build.value(node.args[0])), node.types[0]
    times = _times(small, large, node.types[0])
    if times is None or not _is_exact(times) or not _is_even(node.args[3:], times):
        return False
    build.new[Value(node.id)] = _sum(build, node, build.value(node.args[0]), times)
    return True


def averaged(build: Rebuild, node: Node) -> bool:
    """Add what stands for ``_adaptive_avg_pool2d``; return False where its windows are of several sizes."""
    large, small = build.type(build.value(node.args[0])), node.types[0]
    times = _times(small, large, node.types[0])
    if times is None:
        return False
    total = _sum(build, node, build.value(node.args[0]), times)
    (mean,) = build.make(node, "mean", "aten.div.Scalar", (total, times[0] * times[1]), build.type(total))
    build.new[Value(node.id)] = mean
    return True


def shared(build: Rebuild, node: Node) -> bool:
    """Add what stands for its gradient: each place gets its share of its window's."""
    grad, large = build.value(node.args[0]), node.types[0]
    small = build.type(grad)
    times = _times(small, large, node.types[0])
    if times is None:
        return False
    (share,) = build.make(node, "share", "aten.div.Scalar", (grad, times[0] * times[1]), small)
    return _spread(build, node, share, times)


def _times(small: Type, large: Type, made: Type) -> tuple[int, int] | None:
    """How many rows and columns one has for each of the other; None where they do not come out.

    Args:
        small: the type that has fewer.
        large: the type that has more.
        made: which of the two is made; it must lie in memory row by row.
    """
    assert isinstance(small, TensorType)
    assert isinstance(large, TensorType)
    assert isinstance(made, TensorType)
    if len(small.shape) != 2 + SPACE or 0 in small.shape or made.strides != contiguous_strides(made.shape):
        return None
    rows, columns = (wide // own for wide, own in zip(large.shape[SPACE:], small.shape[SPACE:], strict=True))
    fits = large.shape[SPACE:] == (rows * small.shape[SPACE], columns * small.shape[SPACE + 1])
    return (rows, columns) if fits and small.dtype == large.dtype else None


def _is_exact(times: tuple[int, int]) -> bool:
    """Whether dividing a place by them is exact in floating point, as the operator does it."""
    return all(not each & (each - 1) for each in times)


def _is_even(scales: tuple[Arg, ...], times: tuple[int, int]) -> bool:
    """Whether the scales that are given are those of the sizes."""
    pairs = zip(scales, times, strict=False)
    return all(scale is None or scale == each for scale, each in pairs)


def _opened(kind: TensorType, times: tuple[int, int]) -> TensorType:
    """A type in which the places that belong to one have dimensions of their own."""
    (n, c, h, w), (a, b, row, column) = kind.shape, kind.strides
    shape = (n, c, h // times[0], times[0], w // times[1], times[1])
    steps = (a, b, row * times[0], row, column * times[1], column)
    return TensorType(shape, kind.dtype, kind.device, steps)


def _spread(build: Rebuild, node: Node, of: Value, times: tuple[int, int]) -> bool:
    small, large = build.type(of), node.types[0]
    assert isinstance(large, TensorType)
    narrow = _opened(small, (1, 1))
    wide = dense(small, *_opened(large, times).shape)
    steps = tuple(0 if dim in APART else step for dim, step in enumerate(narrow.strides))
    spread = TensorType(wide.shape, wide.dtype, wide.device, steps)
    (opened,) = build.make(node, "opened", "aten.view.default", (of, narrow.shape), narrow, view=True)
    (expanded,) = build.make(node, "expanded", "aten.expand.default", (opened, wide.shape), spread, view=True)
    kept = (("memory_format", Symbol("memory_format", "contiguous_format")),)
    (copied,) = build.make(node, "repeated", "aten.clone.default", (expanded,), wide, kwargs=kept)
    (made,) = build.make(node, "closed", "aten.view.default", (copied, large.shape), large, view=True)
    build.new[Value(node.id)] = made
    return True


def _sum(build: Rebuild, node: Node, of: Value, times: tuple[int, int]) -> Value:
    large, small = build.type(of), node.types[0]
    assert isinstance(small, TensorType)
    wide = _opened(large, times)
    (opened,) = build.make(node, "opened", "aten.view.default", (of, wide.shape), wide, view=True)
    return build.make(node, "total", "aten.sum.dim_IntList", (opened, APART), small)[0]
