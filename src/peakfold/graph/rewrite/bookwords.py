"""Words with windows, of the rule book and by hand; and padding, splitting, choosing rows."""

from collections.abc import Mapping, Sequence
from math import prod

from peakfold.graph.rewrite.infer import CannotInfer
from peakfold.graph.rewrite.maker import Maker
from peakfold.graph.rewrite.words import Attrs, Reader, Reading, Writer, kinds_of, values_of
from peakfold.ir.graph import Arg, Graph, Node, Symbol, Value

_CONV = "aten.convolution.default"


def _numbers(arg: Arg) -> tuple[int, ...]:
    return tuple(item for item in arg if isinstance(item, int)) if isinstance(arg, tuple) else ()


def _one(numbers: Sequence[int]) -> int | None:
    """Return the number that all are, None where they differ."""
    return numbers[0] if numbers and len(set(numbers)) == 1 else None


def _named(**numbers: int) -> Attrs:
    """Return attributes without those that are 1, which rules leave out."""
    return {name: number for name, number in numbers.items() if number != 1}


def _conv(graph: Graph, node: Node) -> Reading | None:
    """Read a convolution whose odd kernel is centred on each place, in as many groups as the shapes say."""
    kinds = kinds_of(graph, node, 2)
    if kinds is None or node.args[2] is not None or node.args[6]:
        return None
    kernel = kinds[1].shape[2:]
    stride, padding, dilation = (_numbers(arg) for arg in node.args[3:6])
    step, apart = _one(stride), _one(dilation)
    if step is None or apart is None or any(n % 2 == 0 for n in kernel):
        return None
    if padding != tuple(apart * (n // 2) for n in kernel) or any(_numbers(node.args[7])):
        return None
    return Reading("conv", values_of(node, 2), _named(stride=step, dilation=apart))


def _make_conv(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    given, kernel = (maker.shape(value) for value in args)
    spatial = kernel[2:]
    step, apart = _number(attrs, "stride", 1), _number(attrs, "dilation", 1)
    groups, rest = divmod(given[1], kernel[1])
    if rest or not groups or kernel[0] % groups or any(n % 2 == 0 for n in spatial):
        raise CannotInfer("a convolution that is not legal")
    padding = tuple(apart * (n // 2) for n in spatial)
    n = len(spatial)
    window: tuple[Arg, ...] = ((step,) * n, padding, (apart,) * n)
    return maker.call(_CONV, *args, None, *window, False, (0,) * n, groups)


def _number(attrs: Attrs, name: str, default: int) -> int:
    found = attrs.get(name, default)
    assert isinstance(found, int)
    return found


def _pool(word: str) -> Reader:
    """Return a reader of a pooling of images whose square odd window is centred on each place."""

    def read(graph: Graph, node: Node) -> Reading | None:
        kinds = kinds_of(graph, node, 1)
        window = (*node.args[1:4], (), ())
        size, padding = _one(_numbers(window[0])), _one(_numbers(window[2]))
        step = _one(_numbers(window[1])) or size
        if kinds is None or len(kinds[0].shape) != 4 or not size or step is None or size % 2 == 0:
            return None
        if (padding or 0) != size // 2 or not _is_plain_pool(word, node.args[4:]):
            return None
        return Reading(word, values_of(node, 1), {"kernel": size, **_named(stride=step)})

    return read


def _is_plain_pool(word: str, rest: tuple[Arg, ...]) -> bool:
    """Whether a pooling has no ceiling, no dilation and no divisor of its own, and counts what is padded."""
    if word == "maxpool":
        return all(_one(_numbers(arg)) == 1 for arg in rest[:1]) and not any(rest[1:2])
    return not any(rest[:1]) and rest[1:2] != (False,) and rest[2:3] in ((), (None,))


def _make_pool(op: str) -> Writer:
    def write(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
        if len(maker.shape(args[0])) != 4:
            raise CannotInfer("pooling of what are no images")
        size, step = _number(attrs, "kernel", 0), _number(attrs, "stride", 1)
        return maker.call(op, args[0], (size, size), (step, step), (size // 2, size // 2))

    return write


def _make_averaged(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    """Make an average pooling as a convolution of each channel with equal weights: another, faster kernel."""
    window, kind = attrs["window"], maker.tensor(args[0])
    assert isinstance(window, tuple)
    size = _numbers(window[0])
    if len(kind.shape) != 4 or not _is_plain_pool("avgpool", window[3:]):
        raise CannotInfer("pooling of what are no images, or that rounds up or counts otherwise")
    stride = _numbers(window[1]) if len(window) > 1 else ()
    padding = _numbers(window[2]) if len(window) > 2 else (0, 0)
    kwargs: dict[str, Arg] = {
        "dtype": Symbol("dtype", kind.dtype),
        "layout": None,
        "device": Symbol("device", kind.device),
        "pin_memory": False,
    }
    channels = kind.shape[1]
    weights = maker.call("aten.full.default", (channels, 1, *size), 1 / prod(size), **kwargs)
    turn: tuple[Arg, ...] = (stride or size, padding, (1, 1), False, (0, 0), channels)
    return maker.call(_CONV, args[0], weights, None, *turn)


def _pad(graph: Graph, node: Node) -> Reading | None:
    """Read a padding by zeros along one axis."""
    kinds = kinds_of(graph, node, 1)
    if kinds is None or (len(node.args) > 2 and node.args[2] != 0):
        return None
    amounts = _numbers(node.args[1])
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))
    padded = [(i, pair) for i, pair in enumerate(pairs) if any(pair)]
    if len(padded) != 1 or min(padded[0][1]) < 0:
        return None
    (back, (low, high)) = padded[0]
    return Reading(
        "pad", values_of(node, 1), {"axis": len(kinds[0].shape) - 1 - back, "low": low, "high": high}
    )


def _make_pad(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    rank = len(maker.shape(args[0]))
    amounts = [0] * (2 * (rank - _number(attrs, "axis", 0)))
    amounts[-2:] = [_number(attrs, "low", 0), _number(attrs, "high", 0)]
    return maker.call("aten.constant_pad_nd.default", args[0], tuple(amounts), 0.0)


def _max(graph: Graph, node: Node) -> Reading | None:
    kinds = kinds_of(graph, node, 1)
    dims = _numbers(node.args[1]) if len(node.args) > 2 and node.args[2] else ()
    if kinds is None or len(dims) != 1 or not kinds[0].shape:
        return None
    return Reading("max", values_of(node, 1), {"axis": dims[0] % len(kinds[0].shape)})


def _make_max(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    return maker.call("aten.amax.default", args[0], (attrs["axis"],), True)


def _gather(graph: Graph, node: Node) -> Reading | None:
    value, dim, index = node.args
    assert isinstance(value, Value)
    assert isinstance(dim, int)
    assert isinstance(index, Value)
    rank = len(graph.tensor_type(value).shape)
    return Reading("gather", (value, index), {"axis": dim % rank}) if rank else None


def _make_gather(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    return maker.call("aten.index_select.default", args[0], attrs["axis"], args[1])


def _make_expand(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    return maker.call("aten.expand.default", args[0], maker.shape(args[1]))


def _make_split(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    """Make the first or second part of a tensor in two, as long as those of two others."""
    whole, first, second = (maker.shape(value) for value in args)
    axis, output = _number(attrs, "axis", 0), _number(attrs, "output", 0)
    of = _number(attrs, "of", axis)
    start, stop = ((0, first[of]), (first[of], first[of] + second[of]))[output]
    if first[of] + second[of] != whole[axis]:
        raise CannotInfer("the parts are not as long as the whole")
    return maker.call("aten.slice.Tensor", args[0], axis, start, stop)


READERS: Mapping[str, tuple[Reader, ...]] = {
    _CONV: (_conv,),
    "aten.avg_pool2d.default": (_pool("avgpool"),),
    "aten.max_pool2d_with_indices.default": (_pool("maxpool"),),
    "aten.constant_pad_nd.default": (_pad,),
    "aten.amax.default": (_max,),
    "aten.index_select.default": (_gather,),
}

WRITERS: Mapping[str, Writer] = {
    "conv": _make_conv,
    "averaged": _make_averaged,
    "avgpool": _make_pool("aten.avg_pool2d.default"),
    "maxpool": _make_pool("aten.max_pool2d_with_indices.default"),
    "pad": _make_pad,
    "max": _make_max,
    "gather": _make_gather,
    "expand": _make_expand,
    "split": _make_split,
}
