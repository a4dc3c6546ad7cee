"""A graph is rewritten so that what couples the parts of a loss or a mean is computed once, outside.

Means become sums and a division; the total weight of a loss is counted from the labels alone; random numbers
are drawn whole, from a size and not from a value; a training batch normalization takes its statistics
sample by sample, and merges them; a softmax of few rows over many places is of what all of them come to.
Where there is one image alone, statistics are taken row by row, and the gradient of a convolution and
resizing are taken apart. Sums are rounded in another order, nothing else changes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from peakfold.ir.graph import Arg, Graph, Node, Symbol, Value
from peakfold.ir.types import TensorType
from peakfold.plan.fission import gradients, identities, norms, resizing, scales, softmax
from peakfold.plan.fission.rebuild import Rebuild, dense, placed_on, without_unread

NONE, MEAN, SUM = 0, 1, 2
"""Reductions of losses."""
IMAGE = 3
"""Dimensions that an image has more of: samples, channels, rows, columns."""

Rewrite = Callable[[Rebuild, Node], bool]
"""Adds what stands for a node; False where it does not apply."""


def prepare(graph: Graph, *, batch_norms: bool = True) -> Graph:
    """Return the same program, in which parts of a batch are coupled by sums alone.

    Args:
        graph: the program.
        batch_norms: whether training batch normalizations are taken apart too: they take more steps.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(8, 3))
        >>> mean = Node(1, "mean", Op("aten.mean.default"), (Value(0),), (), (tensor(),), (None,))
        >>> [node.op.name for node in prepare(Graph((x,), (mean,), (Output("y", Value(1)),))).nodes]
        ['aten.sum.default', 'aten.div.Scalar']
    """
    build = Rebuild(graph)
    drawn_from = _drawn_from(graph)
    rows = is_single(graph)
    stats, moved = norms.Norms(rows=rows), scales.Scales(graph)
    rewrites = {**REWRITES, **ROWS} if rows else REWRITES
    for node in graph.nodes:
        rewrite = rewrites.get(node.op.packet)
        if node.id in drawn_from:
            _empty(build, node)
        elif (batch_norms and stats.rewrite(build, node)) or moved.rewrite(build, node):
            continue
        elif rewrite is None or not rewrite(build, node):
            build.keep(node)
    return without_unread(build.graph_of())


def is_single(graph: Graph) -> bool:
    """Return whether a program works on one image, which has no batch to be split along.

    Example:
        >>> from peakfold.ir.graph import Input
        >>> from peakfold.ir.types import tensor
        >>> [is_single(Graph((Input(0, "x", "batch", tensor(n, 3, 8, 8)),), (), ())) for n in (1, 2)]
        [True, False]
    """
    kinds = [given.type for given in graph.inputs if given.kind == "batch"]
    shapes = [kind.shape for kind in kinds if isinstance(kind, TensorType) and kind.shape]
    return all(shape[0] == 1 for shape in shapes) and any(len(shape) > IMAGE for shape in shapes)


def _mean(build: Rebuild, node: Node) -> bool:
    """``mean`` becomes ``sum`` and ``div``."""
    kind, whole = node.types[0], build.type(build.value(node.args[0]))
    if not isinstance(kind, TensorType) or not kind.numel:
        return False
    op = "aten.sum.default" if node.op.name == "aten.mean.default" else "aten.sum.dim_IntList"
    args = tuple(build.read(arg) for arg in node.args)
    (total,) = build.make(node, "sum", op, args, kind, kwargs=node.kwargs)
    _divide(build, node, total, whole.numel // kind.numel)
    return True


def _divide(build: Rebuild, node: Node, total: Value, by: int) -> None:
    (mean,) = build.make(node, "mean", "aten.div.Scalar", (total, by), build.type(total))
    build.new[Value(node.id)] = mean


def _ones_like(build: Rebuild, node: Node) -> bool:
    """``ones_like`` of one number, where a backward begins, needs not wait for that number."""
    kind = node.types[0]
    if not isinstance(kind, TensorType) or kind.shape:
        return False
    (one,) = build.make(node, "one", "aten.ones.default", ((),), kind, kwargs=placed_on(kind))
    build.new[Value(node.id)] = one
    return True


def _nll(build: Rebuild, node: Node) -> bool:
    """``nll_loss_forward`` with mean: the sum of losses, over the weight that the labels alone say."""
    if node.args[3] != MEAN:
        return False
    args = [build.read(arg) for arg in node.args]
    args[3] = SUM
    scalar = node.types[0]
    total, _ = build.make(node, "sum", replace(node.op), tuple(args), *node.types)
    weight = _total_weight(build, node)
    (loss,) = build.make(node, "mean", "aten.div.Tensor", (total, weight), scalar)
    build.new[Value(node.id)] = loss
    build.new[Value(node.id, 1)] = weight
    return True


def _total_weight(build: Rebuild, node: Node) -> Value:
    target, weights, ignored = build.value(node.args[1]), build.read(node.args[2]), node.args[4]
    labels, total = build.type(target), node.types[1]
    assert isinstance(total, TensorType)
    flags = replace(dense(labels, *labels.shape, dtype="bool"), strides=labels.strides)
    (counted,) = build.make(node, "counted", "aten.ne.Scalar", (target, ignored), flags)
    if not isinstance(weights, Value):
        (count,) = build.make(node, "count", "aten.sum.default", (counted,), dense(labels, dtype="int64"))
        cast = (("dtype", Symbol("dtype", total.dtype)),)
        return build.make(node, "weight", "aten._to_copy.default", (count,), total, kwargs=cast)[0]
    flat = dense(labels, labels.numel)
    (safe,) = build.make(node, "labels", "aten.mul.Tensor", (target, counted), labels)
    (row,) = build.make(node, "flat", "aten.reshape.default", (safe, (-1,)), flat, view=True)
    kind = build.type(weights)
    (taken,) = build.make(
        node, "weights", "aten.index_select.default", (weights, 0, row), dense(kind, *flat.shape)
    )
    (mask,) = build.make(
        node, "mask", "aten.reshape.default", (counted, (-1,)), replace(flat, dtype="bool"), view=True
    )
    (held,) = build.make(node, "weighted", "aten.mul.Tensor", (taken, mask), dense(kind, *flat.shape))
    return build.make(node, "weight", "aten.sum.default", (held,), total)[0]


REDUCED: Mapping[str, int] = {
    "mse_loss": 2,
    "smooth_l1_loss": 2,
    "huber_loss": 2,
    "binary_cross_entropy": 3,
    "binary_cross_entropy_with_logits": 4,
}
"""Position of the reduction of element-wise losses; one further on in their backward."""


def _loss(build: Rebuild, node: Node) -> bool:
    """A mean of element-wise losses becomes their sum and a division."""
    position = REDUCED[node.op.packet]
    reduction = node.args[position] if position < len(node.args) else MEAN
    if reduction != MEAN:
        return False
    whole = build.type(build.value(node.args[0]))
    (total,) = build.make(node, "sum", node.op, _with(build, node, position, SUM), *node.types)
    _divide(build, node, total, whole.numel)
    return True


def _loss_backward(build: Rebuild, node: Node) -> bool:
    """The gradient of a mean is that of the sum, its own gradient divided."""
    position = REDUCED[node.op.packet.removesuffix("_backward")] + 1
    if position < len(node.args) and node.args[position] != MEAN:
        return False
    grad = build.value(node.args[0])
    whole = build.type(build.value(node.args[1]))
    (share,) = build.make(node, "share", "aten.div.Scalar", (grad, whole.numel), build.type(grad))
    args = (share, *_with(build, node, position, SUM)[1:])
    (made,) = build.make(node, "sum", node.op, args, *node.types)
    build.new[Value(node.id)] = made
    return True


def _with(build: Rebuild, node: Node, position: int, value: Arg) -> tuple[Arg, ...]:
    args = [build.read(arg) for arg in node.args]
    args += [None] * (position + 1 - len(args))
    args[position] = value
    return tuple(args)


def _drawn_from(graph: Graph) -> frozenset[int]:
    """``empty_like`` and the like that only random operators read: they are drawn whole, from a size."""
    found: set[int] = set()
    for node in graph.nodes:
        if node.op.packet == "empty_like":
            readers = [graph.node[user] for user in graph.users.get(Value(node.id), ())]
            if readers and all(reader.op.random for reader in readers):
                found.add(node.id)
    return frozenset(found)


def _empty(build: Rebuild, node: Node) -> None:
    kind = node.types[0]
    assert isinstance(kind, TensorType)
    args = (kind.shape, kind.strides)
    (made,) = build.make(node, "size", "aten.empty_strided.default", args, kind, kwargs=placed_on(kind))
    build.new[Value(node.id)] = made


def _bernoulli(build: Rebuild, node: Node) -> bool:
    """A drawn mask is kept in one byte an element."""
    kind = node.types[0]
    if not isinstance(kind, TensorType) or kind.dtype == "bool":
        return False
    build.keep(node)
    byte = replace(kind, dtype="bool")
    kept = (("dtype", Symbol("dtype", "bool")),)
    (mask,) = build.make(node, "mask", "aten._to_copy.default", (Value(node.id),), byte, kwargs=kept)
    back = (("dtype", Symbol("dtype", kind.dtype)),)
    (wide,) = build.make(node, "wide", "aten._to_copy.default", (mask,), kind, kwargs=back)
    build.new[Value(node.id)] = wide
    return True


def _native_dropout(build: Rebuild, node: Node) -> bool:
    """``native_dropout`` of ones gives the mask; its product with the operand and the scale is the rest."""
    kind, mask_kind, rate = node.types[0], node.types[1], node.args[1]
    drops = isinstance(rate, int | float) and 0 < rate < 1 and node.args[2] is not False
    if not drops or not isinstance(kind, TensorType):
        return False
    assert isinstance(rate, int | float)
    (ones,) = build.make(node, "ones", "aten.ones.default", (kind.shape,), kind, kwargs=placed_on(kind))
    args = (ones, *node.args[1:])
    _, mask = build.make(node, "drawn", node.op, args, kind, mask_kind, stream=node.stream)
    x = build.value(node.args[0])
    (held,) = build.make(node, "held", "aten.mul.Tensor", (x, mask), kind)
    (scaled,) = build.make(node, "scaled", "aten.mul.Scalar", (held, 1.0 / (1.0 - rate)), kind)
    build.new[Value(node.id)] = scaled
    build.new[Value(node.id, 1)] = mask
    return True


REWRITES: Mapping[str, Rewrite] = {
    "mean": _mean,
    "ones_like": _ones_like,
    "nll_loss_forward": _nll,
    "nll_loss2d_forward": _nll,
    "bernoulli": _bernoulli,
    "native_dropout": _native_dropout,
    **dict.fromkeys(("_softmax", "_log_softmax"), softmax.forward),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), softmax.backward),
    **dict.fromkeys(REDUCED, _loss),
    **dict.fromkeys((f"{name}_backward" for name in REDUCED), _loss_backward),
    **dict.fromkeys((*identities.COPIED, *identities.PADS), identities.dropped),
    **dict.fromkeys((f"{name}_backward" for name in identities.PADS), identities.dropped),
}
"""What stands for an operator, by packet."""

ROWS: Mapping[str, Rewrite] = {
    "convolution_backward": gradients.apart,
    "upsample_nearest2d": resizing.repeated,
    "upsample_nearest2d_backward": resizing.summed,
    "_adaptive_avg_pool2d": resizing.averaged,
    "_adaptive_avg_pool2d_backward": resizing.shared,
}
"""The same, where there is one image alone."""
