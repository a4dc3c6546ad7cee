"""A softmax of few rows over many places, taken apart so that what it runs over can be split.

The scores of a few tokens over a large vocabulary, or of a few queries over many keys: parts of rows would be
small, parts of the places are not. The logarithm of the sum of exponentials is complete after the last part
of one loop (parts are merged by their largest element, so that nothing overflows), the next one reads it, and
what it reads of the scores is in parts again. The gradient needs one number a row in the same way; where it
comes from labels, these alone say it.
"""

from dataclasses import replace

from peakfold.ir.graph import Node, Value
from peakfold.ir.types import TensorType, contiguous_strides
from peakfold.plan.fission.rebuild import Rebuild, dense, placed_on

WIDE = 16
"""Places for each row from which on a softmax is taken apart: parts of fewer rows than that are slow."""
EXACT = ("float32", "float64")
"""Types whose fused operators keep no more digits inside than their operands have."""
MEAN = 1
"""A reduction of losses."""


def forward(build: Rebuild, node: Node) -> bool:
    """Add what stands for ``_softmax`` or ``_log_softmax``; return False where it stays as it is."""
    row = _row(build, node, 0)
    if row is None or node.args[2] is True:
        return False
    x, kind = build.value(node.args[0]), node.types[0]
    (total,) = build.make(node, "logsumexp", "aten.logsumexp.default", (x, (node.args[1],), True), row)
    (made,) = build.make(node, "log", "aten.sub.Tensor", (x, total), kind)
    if node.op.packet == "_softmax":
        (made,) = build.make(node, "shares", "aten.exp.default", (made,), kind)
    build.new[Value(node.id)] = made
    return True


def backward(build: Rebuild, node: Node) -> bool:
    """Add what stands for the gradient of one; return False where it stays as it is."""
    row = _row(build, node, 0, 1)
    if row is None:
        return False
    grad, out, kind = build.value(node.args[0]), build.value(node.args[1]), node.types[0]
    dims = ((node.args[2],), True)
    if node.op.packet == "_softmax_backward_data":
        (held,) = build.make(node, "held", "aten.mul.Tensor", (grad, out), kind)
        (total,) = build.make(node, "total", "aten.sum.dim_IntList", (held, *dims), row)
        (off,) = build.make(node, "off", "aten.sub.Tensor", (grad, total), kind)
        (made,) = build.make(node, "grad", "aten.mul.Tensor", (off, out), kind)
    else:
        known = _from_labels(build, node, row)
        if known is None:
            (known,) = build.make(node, "total", "aten.sum.dim_IntList", (grad, *dims), row)
        (shares,) = build.make(node, "shares", "aten.exp.default", (out,), kind)
        (share,) = build.make(node, "share", "aten.mul.Tensor", (shares, known), kind)
        (made,) = build.make(node, "grad", "aten.sub.Tensor", (grad, share), kind)
    build.new[Value(node.id)] = made
    return True


def _row(build: Rebuild, node: Node, *operands: int) -> TensorType | None:
    """The type of one number a row; None where the operator is not taken apart.

    Args:
        build: the new graph.
        node: the operator; the argument behind its tensors is the dimension.
        operands: positions of its tensors.
    """
    kind, dim = node.types[0], node.args[len(operands)]
    if not isinstance(kind, TensorType) or not isinstance(dim, int) or kind.dtype not in EXACT:
        return None
    if not kind.shape or not kind.numel:
        return None
    length = kind.shape[dim]
    wide = length >= WIDE * (kind.numel // length)
    read = (build.type(build.value(node.args[at])) for at in operands)
    same = all((one.shape, one.dtype) == (kind.shape, kind.dtype) and _is_plain(one) for one in read)
    if not wide or not same or not _is_plain(kind):
        return None
    at = dim % len(kind.shape)
    return dense(kind, *kind.shape[:at], 1, *kind.shape[at + 1 :])


def _is_plain(kind: TensorType) -> bool:
    """Whether it lies in memory row by row; of one place the step says nothing."""
    rows = zip(kind.shape, kind.strides, contiguous_strides(kind.shape), strict=True)
    return all(length == 1 or own == plain for length, own, plain in rows)


def _from_labels(build: Rebuild, node: Node, row: TensorType) -> Value | None:
    """The sum of a loss's gradient over the classes of each row: minus what its label got.

    None where the gradient is not that of a loss of labels, which have no weights of their own.
    """
    grad = node.args[0]
    loss = build.graph.node.get(grad.node) if isinstance(grad, Value) else None
    if loss is None or loss.op.packet != "nll_loss_backward" or loss.args[3] is not None:
        return None
    labels = build.value(loss.args[2])
    of = build.type(labels)
    if len(of.shape) != 1 or len(row.shape) != 2:
        return None
    given = build.value(loss.args[0])
    if loss.args[4] == MEAN:
        total = build.value(loss.args[6])
        (given,) = build.make(node, "each", "aten.div.Tensor", (given, total), build.type(given))
    (less,) = build.make(node, "less", "aten.neg.default", (given,), build.type(given))
    counts = replace(dense(of, *of.shape, dtype="bool"), strides=of.strides)
    (counted,) = build.make(node, "counted", "aten.ne.Scalar", (labels, loss.args[5]), counts)
    scalar = dense(row)
    (zero,) = build.make(node, "zero", "aten.zeros.default", ((),), scalar, kwargs=placed_on(scalar))
    flat = dense(row, *of.shape)
    (known,) = build.make(node, "known", "aten.where.self", (counted, less, zero), flat)
    return build.make(node, "rows", "aten.view.default", (known, row.shape), row, view=True)[0]
