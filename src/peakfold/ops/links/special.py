"""Rules of operators that one line does not say."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from peakfold.ir.graph import Arg
from peakfold.ir.types import TensorType
from peakfold.ops.links import spatial
from peakfold.ops.links.model import Axis, Call, Combine, Links, Rule, Slot, whole
from peakfold.ops.links.notation import axis, broadcast


def flags(arg: Arg) -> tuple[bool, ...]:
    """Return a list of flags."""
    return tuple(bool(item) for item in arg) if isinstance(arg, tuple) else ()


def slots(call: Call, *places: tuple[int, int]) -> list[Slot]:
    """Return the slots of whole dimensions of arguments, pairs (position, dimension); of Values only."""
    found = []
    for position, dim in places:
        index = call.operand(position)
        if index is not None:
            found.append(Slot(index, whole(dim, call.shape(index)[dim])))
    return found


def outs(call: Call, *places: tuple[int, int]) -> list[Slot]:
    """Return the slots of whole dimensions of outputs, pairs (output, dimension); not of empty ones."""
    return [
        Slot(index, whole(dim, call.out(index)[dim]))
        for index, dim in places
        if index < len(call.node.types) and len(call.out(index)) > dim and 0 not in call.out(index)
    ]


def long(axes: list[Axis]) -> tuple[Axis, ...]:
    """Return the axes that are longer than 1."""
    return tuple(item for item in axes if _length(item) > 1)


def _length(item: Axis) -> int:
    return next((slot.factor.length for slot in (*item.operands, *item.outputs)), 0)


def running(combine: Combine) -> Rule:
    """Return the rule of ``cumsum(x, dim)`` and the like: a part goes on where the last one ended."""

    def rule(call: Call) -> Links:
        shape = call.shape(0)
        gone = call.number(1) % max(len(shape), 1)
        axes = list(broadcast(call, (0,), [dim for dim in range(len(shape)) if dim != gone]))
        if shape and shape[gone] > 1:
            ends = [Slot(0, whole(gone, shape[gone]))]
            axes.append(Axis(tuple(ends), tuple(ends), None, carry=combine))
        return Links(tuple(axes), (frozenset({0}),) if combine == "sum" else ())

    return rule


def sort(call: Call) -> Links:
    """Links of ``sort(x, dim)`` and ``sort(x, stable=, dim=)``: of the last dimension where none is named."""
    dims = len(call.out())
    given = [dim for dim in (call.arg(1), call.keyword("dim")) if isinstance(dim, int)]
    gone = (given[0] if given else -1) % max(dims, 1)
    return Links(tuple(broadcast(call, (0,), [dim for dim in range(dims) if dim != gone])))


FLOATS = ("float64", "float32", "float16", "bfloat16")


def to_copy(call: Call) -> Links:
    """Links of a cast: linear between floating-point types where it loses no digits."""
    axes = tuple(broadcast(call, (0,), range(len(call.out()))))
    source, target = call.types[0], call.node.types[0]
    if not isinstance(source, TensorType) or not isinstance(target, TensorType):
        return Links(axes)
    wider = target.dtype in ("float64", "float32") and source.dtype in FLOATS
    return Links(axes, (frozenset({0}),) if wider else ())


def masked_fill(call: Call) -> Links:
    """Links of ``masked_fill(x, mask, number)``: linear where the number is 0."""
    axes = tuple(broadcast(call, range(len(call.types)), range(len(call.out()))))
    zero = isinstance(call.arg(2), int | float) and call.arg(2) == 0
    return Links(axes, (frozenset({0}),) if zero else ())


def but_last_two(call: Call) -> Links:
    """Links of ``tril`` and ``triu``."""
    axes = tuple(broadcast(call, (0,), range(len(call.out()) - 2)))
    return Links(axes, (frozenset({0}),))


def prelu(call: Call) -> Links:
    """Links of ``prelu(x, weight)``: one weight, or one for each place of dimension 1."""
    dims = len(call.out())
    axes = list(broadcast(call, (0,), [dim for dim in range(dims) if dim != 1]))
    if dims > 1:
        weights = call.operand(1)
        single = weights is None or call.shape(weights) in ((), (1,))
        places = ((0, 1),) if single else ((0, 1), (1, 0))
        axes.append(axis(slots(call, *places), outs(call, (0, 1)), None))
    return Links(long(axes))


def layer_norm(call: Call) -> Links:
    """Links of ``native_layer_norm(x, normalized, weight, bias, eps)``."""
    dims = len(call.shape(0)) - len(call.numbers(1))
    axes = [
        axis(slots(call, (0, dim)), outs(call, (0, dim), (1, dim), (2, dim)), None) for dim in range(dims)
    ]
    return Links(long(axes))


def layer_norm_backward(call: Call) -> Links:
    """Links of ``native_layer_norm_backward(grad, x, normalized, mean, rstd, weight, bias, mask)``."""
    dims = len(call.shape(0)) - len(call.numbers(2))
    axes = [
        axis(slots(call, (0, dim), (1, dim), (3, dim), (4, dim)), outs(call, (0, dim))) for dim in range(dims)
    ]
    return Links(long(axes), (frozenset({0}),))


def group_norm(call: Call) -> Links:
    """Links of ``native_group_norm(x, weight, bias, N, C, HxW, groups, eps)``: samples."""
    return Links(long([axis(slots(call, (0, 0)), outs(call, (0, 0), (1, 0), (2, 0)), None)]))


def group_norm_backward(call: Call) -> Links:
    """Links of ``native_group_norm_backward(grad, x, mean, rstd, weight, N, ..)``: samples."""
    samples = slots(call, (0, 0), (1, 0), (2, 0), (3, 0))
    return Links(long([axis(samples, outs(call, (0, 0)))]), (frozenset({0}),))


def embedding(call: Call) -> Links:
    """Links of ``embedding(weight, index)``."""
    lead = len(call.shape(1))
    axes = [axis(slots(call, (1, dim)), outs(call, (0, dim)), None) for dim in range(lead)]
    axes.append(axis(slots(call, (0, 1)), outs(call, (0, lead)), None))
    return Links(long(axes), (frozenset({0}),))


def embedding_backward(call: Call) -> Links | None:
    """Links of ``embedding_dense_backward(grad, index, rows, padding, scale_by_frequency)``."""
    if call.arg(4, False) is not False:
        return None
    lead = len(call.shape(1))
    axes = [axis(slots(call, (0, dim), (1, dim)), ()) for dim in range(lead)]
    axes.append(axis(slots(call, (0, lead)), outs(call, (0, 1)), None))
    return Links(long(axes), (frozenset({0}),))


def gather(call: Call) -> Links:
    """Links of ``gather(x, dim, index)``: the places that are read may be split, not those to read from."""
    index = call.operand(2)
    shape, out = call.shape(0), call.out()
    if index is None or not out:
        return Links()
    gone = call.number(1) % len(out)
    axes = [axis(slots(call, (2, gone)), outs(call, (0, gone)), None)]
    for dim, length in enumerate(shape):
        if dim != gone and length == out[dim]:
            axes.append(axis(slots(call, (0, dim), (2, dim)), outs(call, (0, dim)), None))
    return Links(long(axes), (frozenset({0}),))


def index(call: Call) -> Links | None:
    """Links of ``index(x, indices)`` where the indices are the first dimensions' and all tensors."""
    given = call.arg(1)
    operands = call.listed(1)
    if not isinstance(given, tuple) or len(given) != len(operands):
        return None
    lead = len(call.out()) - (len(call.shape(0)) - len(operands))
    axes = list(_indexed(call, operands, lead))
    for place in range(lead, len(call.out())):
        source = place - lead + len(operands)
        axes.append(axis(slots(call, (0, source)), outs(call, (0, place)), None))
    return Links(long(axes), (frozenset({0}),))


def _indexed(call: Call, operands: tuple[int, ...], lead: int) -> Iterator[Axis]:
    for dim in range(lead):
        back, length = lead - dim, call.out()[dim]
        ins = [
            Slot(each, whole(len(call.shape(each)) - back, length))
            for each in operands
            if len(call.shape(each)) >= back and call.shape(each)[-back] == length
        ]
        yield axis(ins, [Slot(0, whole(dim, length))], None)


def convolution(call: Call) -> Links | None:
    """Links of ``convolution(x, weight, bias, ..)``."""
    axes = [axis(slots(call, (0, 0)), outs(call, (0, 0)), None)]
    bias = call.operand(2)
    if call.number(8, 1) == 1:
        out_dim, in_dim = (1, 0) if call.arg(6) else (0, 1)
        axes.append(axis(slots(call, (1, out_dim), (2, 0)), outs(call, (0, 1)), None))
        axes.append(axis(slots(call, (0, 1), (1, in_dim)), ()))
    axes += spatial.convolved(call)
    held = frozenset() if bias is None else frozenset({bias})
    x, weight = call.operand(0), call.operand(1)
    linear = tuple(frozenset({each}) | held for each in (x, weight) if each is not None)
    return Links(long(axes), linear, held)


def convolution_backward(call: Call) -> Links:
    """Links of ``convolution_backward(grad, x, weight, bias_sizes, .., groups, mask)``."""
    axes = [axis(slots(call, (0, 0), (1, 0)), outs(call, (0, 0)))]
    if call.number(9, 1) == 1:
        out_dim, in_dim = (1, 0) if call.arg(7) else (0, 1)
        axes.append(axis(slots(call, (0, 1), (2, out_dim)), outs(call, (1, out_dim), (2, 0))))
        bias = frozenset({2}) if flags(call.arg(10))[2:] == (True,) else frozenset[int]()
        inner = axis(slots(call, (1, 1), (2, in_dim)), outs(call, (0, 1), (1, in_dim)))
        axes.append(Axis(inner.operands, inner.outputs, inner.combine, bias))
    axes += spatial.weighed(call)
    return Links(long(axes), (frozenset({0}),))


def batch_norm(call: Call) -> Links:
    """Links of ``native_batch_norm(x, weight, bias, mean, var, training, momentum, eps)`` and its like."""
    params = [(position, 0) for position in range(1, 5)]
    stats = [(index, 0) for index in range(1, len(call.node.types))]
    axes = [axis(slots(call, (0, 1), *params), outs(call, (0, 1), *stats), None)]
    if call.arg(5) is False:
        dims = (0, *range(2, len(call.shape(0))))
        axes += [axis(slots(call, (0, dim)), outs(call, (0, dim)), None) for dim in dims]
    return Links(long(axes))


def batch_norm_backward(call: Call) -> Links:
    """Links of ``native_batch_norm_backward(grad, x, weight, mean, var, save.., training, eps, mask)``."""
    params = [(position, 0) for position in range(2, 7)]
    places = outs(call, (0, 1), (1, 0), (2, 0))
    axes = [axis(slots(call, (0, 1), (1, 1), *params), places, None)]
    if call.arg(7) is False:
        dims = (0, *range(2, len(call.shape(0))))
        axes += [axis(slots(call, (0, dim), (1, dim)), outs(call, (0, dim))) for dim in dims]
    return Links(long(axes), (frozenset({0}),))


def attention(call: Call) -> Links:
    """Links of scaled dot product attention: samples, heads; without mask or cause, queries too."""
    axes = [
        axis(slots(call, (0, dim), (1, dim), (2, dim)), outs(call, (0, dim), (1, dim)), None)
        for dim in (0, 1)
    ]
    if not call.arg(4, False) and call.keyword("attn_mask") is None:
        axes.append(axis(slots(call, (0, 2)), outs(call, (0, 2), (1, 2)), None))
    return Links(long(axes)) if call.keyword("attn_mask") is None else Links(long(axes[:1]))


def attention_backward(call: Call) -> Links | None:
    """Links of the gradient of attention: samples, heads; without mask or cause, queries too."""
    if call.keyword("attn_mask") is not None:
        return None
    inputs = [(position, dim) for dim in (0, 1) for position in range(6)]
    axes = [
        axis(
            slots(call, *[place for place in inputs if place[1] == dim]),
            outs(call, (0, dim), (1, dim), (2, dim)),
            None,
        )
        for dim in (0, 1)
    ]
    if not call.arg(7, False):
        axes.append(axis(slots(call, (0, 2), (1, 2), (4, 2), (5, 2)), outs(call, (0, 2))))
    return Links(long(axes))


def nll_forward(call: Call) -> Links | None:
    """Links of ``nll_loss(2d)_forward(x, target, weight, reduction, ignore)``: sums add up, means do not."""
    if call.number(3) == MEAN:
        return Links()
    dims, classes = _nll_dims(call, 1), _classes(call, 0, 1, 2, ())
    if call.number(3) == SUM:
        rows = [axis(slots(call, (0, dim), (1, at)), ()) for dim, at in dims]
        return Links(long([*rows, classes]))
    axes = [
        Axis(tuple(slots(call, (0, dim), (1, at))), tuple(outs(call, (0, at))), None, frozenset({1}))
        for dim, at in dims
    ]
    return Links(long([*axes, classes]))


def nll_backward(call: Call) -> Links:
    """Links of ``nll_loss(2d)_backward(grad, x, target, weight, reduction, ignore, total_weight)``."""
    dims = _nll_dims(call, 2)
    rows = [(0, at) for _, at in dims] if call.number(4) == NONE else [None] * len(dims)
    axes = [
        axis(slots(call, *([row] if row else []), (1, dim), (2, at)), outs(call, (0, dim)), None)
        for (dim, at), row in zip(dims, rows, strict=True)
    ]
    axes.append(_classes(call, 1, 2, 3, ((0, _class_dim(call, 1)),)))
    return Links(long(axes), (frozenset({0}),))


def _class_dim(call: Call, scores: int) -> int:
    return min(len(call.shape(scores)) - 1, 1)


def _classes(call: Call, scores: int, target: int, weight: int, made: tuple[tuple[int, int], ...]) -> Axis:
    """The axis of the classes, of which the labels name places; parts of a loss add up.

    Args:
        call: of a loss, or of its gradient.
        scores: position of the argument that has the classes.
        target: position of the labels.
        weight: position of the weight of each class.
        made: where outputs have the axis.
    """
    labels = call.operand(target)
    found = axis(slots(call, (scores, _class_dim(call, scores)), (weight, 0)), outs(call, *made))
    return replace(found, counted=frozenset() if labels is None else frozenset({labels}))


NONE, MEAN, SUM = 0, 1, 2
"""Reductions of losses."""


IGNORED: Mapping[str, int] = {
    "nll_loss_forward": 4,
    "nll_loss2d_forward": 4,
    "nll_loss_backward": 5,
    "nll_loss2d_backward": 5,
}
"""Position of the label that does not count."""


def _nll_dims(call: Call, target: int) -> list[tuple[int, int]]:
    """Pairs (dimension of the scores, of the target): all but that of the classes."""
    index = call.operand(target)
    dims = len(call.shape(index)) if index is not None else 0
    return [(0 if dim == 0 else dim + 1, dim) for dim in range(dims)]


def elementwise_loss(position: int) -> Rule:
    """Return the rule of a loss of each element whose reduction is the argument at a position."""

    def rule(call: Call) -> Links | None:
        if call.number(position, MEAN) == NONE:
            return Links(tuple(broadcast(call, range(len(call.types)), range(len(call.out())))))
        shape = call.shape(0)
        if call.number(position, MEAN) == MEAN or any(call.shape(k) != shape for k in range(len(call.types))):
            return None
        every = range(len(call.types))
        axes = [axis([Slot(k, whole(dim, n)) for k in every], ()) for dim, n in enumerate(shape)]
        return Links(long(axes))

    return rule


def elementwise_loss_backward(position: int) -> Rule:
    """Return the rule of the gradient of a loss of each element; of a mean's, sizes matter."""

    def rule(call: Call) -> Links | None:
        if call.number(position, MEAN) == MEAN:
            return None
        axes = tuple(broadcast(call, range(len(call.types)), range(len(call.out()))))
        return Links(axes, (frozenset({0}),))

    return rule
