"""Training batch normalization taken apart, so that it can be done in parts and stay exact.

Statistics are taken sample by sample and merged (Chan, Golub and LeVeque, 1979): with m_i and v_i the mean
and the variance of sample i, the mean is that of the m_i and the variance that of v_i + (m_i - mean)^2; a
sum of squares would lose digits. Then the operator runs as at inference, on the merged statistics, and its
backward on the sums of the gradient. Of a single image statistics are taken row by row, and merged alike.
"""

from dataclasses import dataclass
from math import prod

from peakfold.ir.graph import Arg, Node, Value
from peakfold.ir.types import TensorType
from peakfold.plan.fission.rebuild import Rebuild, dense

FORWARD = frozenset({"native_batch_norm", "_native_batch_norm_legit_functional"})
BACKWARD = "native_batch_norm_backward"
IMAGE = 3
"""Dimensions before the columns of an image: samples, channels, rows."""
INFER = "aten.native_batch_norm.default"


@dataclass(frozen=True, slots=True)
class Merged:
    """What a forward leaves for its backward, as Values of the new graph."""

    mean: Value
    var: Value
    rstd: Value


class Norms:
    """Rewrites the normalizations of one graph; a backward after its forward."""

    def __init__(self, *, rows: bool = False) -> None:
        """Begin with none.

        Args:
            rows: whether statistics of one sample are taken row by row.
        """
        self._rows = rows
        self._merged: dict[int, Merged] = {}

    def rewrite(self, build: Rebuild, node: Node) -> bool:
        """Add what stands for a node; return False where it is no normalization over several samples."""
        packet = node.op.packet
        if packet in FORWARD and node.args[5] is True and _is_apart(node, self._rows):
            self._merged[node.id] = _forward(build, node)
            return True
        saved = node.args[5] if packet == BACKWARD else None
        if not isinstance(saved, Value) or saved.node not in self._merged or node.args[7] is not True:
            return False
        _backward(build, node, self._merged[saved.node])
        return True


def _is_apart(node: Node, rows: bool) -> bool:
    """Whether there are several samples, or rows of one, and statistics of their own type."""
    kind, stats = node.types[0], node.types[1]
    held = isinstance(kind, TensorType) and isinstance(stats, TensorType) and kind.dtype == stats.dtype
    return held and isinstance(kind, TensorType) and (kind.shape[0] > 1 or (rows and len(kind.shape) > IMAGE))


def _forward(build: Rebuild, node: Node) -> Merged:
    x, eps = build.value(node.args[0]), node.args[7]
    kind = build.type(x)
    mean, var = _merge(build, node, x) if kind.shape[0] > 1 else _merge_rows(build, node, x)
    row = build.type(mean)
    (safe,) = build.make(node, "safe", "aten.add.Scalar", (var, eps), row)
    (rstd,) = build.make(node, "rstd", "aten.rsqrt.default", (safe,), row)
    y = _infer(build, node, "normalized", x, (build.read(node.args[1]), build.read(node.args[2])), mean, var)
    build.new[Value(node.id, 0)] = y
    build.new[Value(node.id, 1)] = mean
    build.new[Value(node.id, 2)] = rstd
    if len(node.types) == 5:
        samples = kind.numel // kind.shape[1]
        for index, (position, stat, times) in enumerate(
            ((3, mean, 1.0), (4, var, samples / max(samples - 1, 1))), start=3
        ):
            build.new[Value(node.id, index)] = _running(build, node, position, stat, times)
    return Merged(mean, var, rstd)


def _merge(build: Rebuild, node: Node, x: Value) -> tuple[Value, Value]:
    """Mean and biased variance of each channel, from those of each sample."""
    kind = build.type(x)
    each, row = dense(kind, *kind.shape[:2]), dense(kind, kind.shape[1])
    var_each: Value | None = None
    mean_each = x
    if len(kind.shape) > 2:
        dims = tuple(range(2, len(kind.shape)))
        var_each, mean_each = build.make(
            node, "each", "aten.var_mean.correction", (x, dims), each, each, kwargs=(("correction", 0),)
        )
    samples = kind.shape[0]
    mean = _mean_rows(build, node, "mean", mean_each, row, samples)
    (off,) = build.make(node, "off", "aten.sub.Tensor", (mean_each, mean), each)
    (square,) = build.make(node, "square", "aten.mul.Tensor", (off, off), each)
    spread = square
    if var_each is not None:
        (spread,) = build.make(node, "spread", "aten.add.Tensor", (var_each, square), each)
    return mean, _mean_rows(build, node, "var", spread, row, samples)


def _merge_rows(build: Rebuild, node: Node, x: Value) -> tuple[Value, Value]:
    """Mean and biased variance of each channel of one image, from those of each of its rows.

    Squares are of what is left without the row's own mean, so that no digits are lost.
    """
    kind = build.type(x)
    _, channels, rows, *width = kind.shape
    dims = tuple(range(IMAGE, len(kind.shape)))
    each, row = dense(kind, 1, channels, rows, *[1] * len(width)), dense(kind, channels)
    one = dense(kind, 1, channels, 1, *[1] * len(width))
    (total,) = build.make(node, "row", "aten.sum.dim_IntList", (x, dims, True), each)
    (mean_each,) = build.make(node, "row.mean", "aten.div.Scalar", (total, prod(width)), each)
    (off,) = build.make(node, "row.off", "aten.sub.Tensor", (x, mean_each), kind)
    (square,) = build.make(node, "row.square", "aten.mul.Tensor", (off, off), kind)
    (spread,) = build.make(node, "row.spread", "aten.sum.dim_IntList", (square, dims, True), each)
    (var_each,) = build.make(node, "row.var", "aten.div.Scalar", (spread, prod(width)), each)
    over = (0, *range(2, len(kind.shape)))
    mean = _mean_rows(build, node, "mean", mean_each, row, rows, over)
    (wide,) = build.make(node, "mean.wide", "aten.view.default", (mean, one.shape), one, view=True)
    (apart,) = build.make(node, "off", "aten.sub.Tensor", (mean_each, wide), each)
    (far,) = build.make(node, "square", "aten.mul.Tensor", (apart, apart), each)
    (both,) = build.make(node, "spread", "aten.add.Tensor", (var_each, far), each)
    return mean, _mean_rows(build, node, "var", both, row, rows, over)


def _mean_rows(
    build: Rebuild,
    node: Node,
    word: str,
    rows: Value,
    kind: TensorType,
    count: int,
    over: tuple[int, ...] = (0,),
) -> Value:
    (total,) = build.make(node, f"{word}.sum", "aten.sum.dim_IntList", (rows, over), kind)
    return build.make(node, word, "aten.div.Scalar", (total, count), kind)[0]


def _infer(
    build: Rebuild, node: Node, word: str, x: Value, scale: tuple[Arg, Arg], mean: Value, var: Value
) -> Value:
    """Normalize with given statistics: one kernel."""
    kind = build.type(x)
    eps = node.args[8] if node.op.packet == BACKWARD else node.args[7]
    args = (x, *scale, mean, var, False, 0.0, eps)
    return build.make(node, word, INFER, args, kind, dense(kind, 0), dense(kind, 0))[0]


def _running(build: Rebuild, node: Node, position: int, stat: Value, times: float) -> Value:
    """A running statistic: ``(1 - momentum) * old + momentum * times * new``."""
    old, momentum = build.value(node.args[position]), node.args[6]
    assert isinstance(momentum, float | int)
    kind = build.type(old)
    (kept,) = build.make(node, f"kept{position}", "aten.mul.Scalar", (old, 1.0 - momentum), kind)
    (share,) = build.make(node, f"share{position}", "aten.mul.Scalar", (stat, momentum * times), kind)
    return build.make(node, f"running{position}", "aten.add.Tensor", (kept, share), kind)[0]


def _backward(build: Rebuild, node: Node, merged: Merged) -> None:
    """Sums of the gradient over the batch first; then ``(grad - sum / n - x^ * dot / n) * weight * rstd``."""
    grad, x = build.value(node.args[0]), build.value(node.args[1])
    kind = build.type(grad)
    row, empty = build.type(merged.mean), dense(kind, 0)
    weight = build.read(node.args[2])
    args = (grad, x, weight, merged.mean, merged.var, None, None, False, node.args[8], (False, True, True))
    _, dot, total = build.make(node, "sums", f"aten.{BACKWARD}.default", args, empty, row, row)
    build.new[Value(node.id, 1)] = dot
    build.new[Value(node.id, 2)] = total
    count = kind.numel // kind.shape[1]
    (by_dot,) = build.make(node, "dot", "aten.div.Scalar", (dot, -count), row)
    (by_sum,) = build.make(node, "mean", "aten.div.Scalar", (total, -count), row)
    off = _infer(build, node, "off", x, (by_dot, by_sum), merged.mean, merged.var)
    (centered,) = build.make(node, "centered", "aten.add.Tensor", (grad, off), kind)
    scale = merged.rstd
    if isinstance(weight, Value):
        (scale,) = build.make(node, "scale", "aten.mul.Tensor", (merged.rstd, weight), row)
    shape = (1, kind.shape[1], *[1] * (len(kind.shape) - 2))
    (wide,) = build.make(node, "wide", "aten.view.default", (scale, shape), dense(row, *shape), view=True)
    (made,) = build.make(node, "grad", "aten.mul.Tensor", (centered, wide), kind)
    build.new[Value(node.id, 0)] = made
