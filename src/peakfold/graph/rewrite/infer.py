"""Types of the nodes that rewrites make, strides included: what torch would give, without torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from peakfold.graph.rewrite.strides import broadcast, expanded, pointwise, viewed
from peakfold.ir.graph import Arg, Symbol, Value
from peakfold.ir.types import TensorType, Type, contiguous_strides

Shape = tuple[int, ...]


class CannotInfer(Exception):
    """The type of a node that a rewrite would make is not known."""


@dataclass(frozen=True, slots=True)
class Result:
    """An output of a node: its type, and whose storage it shares."""

    type: Type
    alias: Value | None = None


@dataclass(frozen=True)
class Call:
    """An operator with its arguments, and the types of the Values in them."""

    args: tuple[Arg, ...]
    kwargs: Mapping[str, Arg]
    type_of: Callable[[Value], Type]

    def value(self, at: int) -> Value:
        """Return an argument that is a Value."""
        found = self.args[at]
        if not isinstance(found, Value):
            raise CannotInfer(f"argument {at} is no tensor")
        return found

    def tensor(self, at: int) -> TensorType:
        """Return the type of an argument that is a tensor."""
        found = self.type_of(self.value(at))
        if not isinstance(found, TensorType):
            raise CannotInfer(f"argument {at} is no tensor")
        return found

    def number(self, at: int, default: int | None = None) -> int:
        """Return an argument that is a whole number."""
        found = self.args[at] if at < len(self.args) else default
        if not isinstance(found, int) or isinstance(found, bool):
            raise CannotInfer(f"argument {at} is no whole number")
        return found

    def numbers(self, at: int) -> Shape:
        """Return an argument that is a list of whole numbers."""
        found = self.args[at]
        if not isinstance(found, tuple):
            raise CannotInfer(f"argument {at} is no list")
        return tuple(item for item in found if isinstance(item, int))

    @property
    def tensors(self) -> tuple[TensorType, ...]:
        """Types of all arguments that are tensors."""
        kinds = (self.type_of(arg) for arg in self.args if isinstance(arg, Value))
        return tuple(kind for kind in kinds if isinstance(kind, TensorType))


Inference = Callable[[Call], tuple[Result, ...]]


def infer(
    op: str, args: tuple[Arg, ...], kwargs: Mapping[str, Arg], type_of: Callable[[Value], Type]
) -> tuple[Result, ...]:
    """Return the outputs of an operator.

    Args:
        op: name with overload.
        args: its positional arguments.
        kwargs: its keyword arguments.
        type_of: type of each Value in them.

    Raises:
        CannotInfer: the operator is not in the table, or does not take these arguments.

    Example:
        >>> from peakfold.ir.types import tensor
        >>> kinds = {Value(0): tensor(2, 3), Value(1): tensor(3, 4)}
        >>> infer("aten.mm.default", (Value(0), Value(1)), {}, kinds.__getitem__)[0].type.shape
        (2, 4)
    """
    rule = TABLE.get(op)
    if rule is None:
        raise CannotInfer(f"the type of {op} is not known")
    try:
        return rule(Call(args, kwargs, type_of))
    except (ValueError, IndexError) as error:
        raise CannotInfer(f"{op}: {error}") from error


def _fresh(like: TensorType, shape: Shape, strides: Shape | None = None) -> tuple[Result, ...]:
    strides = contiguous_strides(shape) if strides is None else strides
    return (Result(TensorType(shape, like.dtype, like.device, strides)),)


def _same_dtype(kinds: Sequence[TensorType]) -> TensorType:
    first = kinds[0]
    if any((kind.dtype, kind.device) != (first.dtype, first.device) for kind in kinds):
        raise CannotInfer("the operands have several dtypes")
    return first


def _pointwise(call: Call) -> tuple[Result, ...]:
    kinds = call.tensors
    first = _same_dtype(kinds)
    shape = broadcast([kind.shape for kind in kinds])
    return _fresh(first, shape, pointwise(kinds, shape))


def _pointwise_scalar(call: Call) -> tuple[Result, ...]:
    kind = call.tensor(0)
    if not kind.dtype.startswith(("float", "bfloat")):
        raise CannotInfer("the operand is not floating")
    return _fresh(kind, kind.shape, pointwise([kind], kind.shape))


def _mm(call: Call) -> tuple[Result, ...]:
    left, right = call.tensor(0), call.tensor(1)
    (m, k), (k2, n) = left.shape, right.shape
    if k != k2:
        raise CannotInfer(f"{left.shape} times {right.shape}")
    return _fresh(_same_dtype([left, right]), (m, n))


def _bmm(call: Call) -> tuple[Result, ...]:
    left, right = call.tensor(0), call.tensor(1)
    (b, m, k), (b2, k2, n) = left.shape, right.shape
    if (b, k) != (b2, k2):
        raise CannotInfer(f"{left.shape} times {right.shape}")
    return _fresh(_same_dtype([left, right]), (b, m, n))


def _mv(call: Call) -> tuple[Result, ...]:
    left, right = call.tensor(0), call.tensor(1)
    (m, k), (k2,) = left.shape, right.shape
    if k != k2:
        raise CannotInfer(f"{left.shape} times {right.shape}")
    return _fresh(_same_dtype([left, right]), (m,))


def _dot(call: Call) -> tuple[Result, ...]:
    return _fresh(_same_dtype([call.tensor(0), call.tensor(1)]), ())


def _addmm(call: Call) -> tuple[Result, ...]:
    return _mm(Call(call.args[1:], {}, call.type_of))


def _view_of(call: Call, shape: Shape, strides: Shape) -> tuple[Result, ...]:
    kind = call.tensor(0)
    return (Result(replace(kind, shape=shape, strides=strides), call.value(0)),)


def _view(call: Call) -> tuple[Result, ...]:
    kind, shape = call.tensor(0), call.numbers(1)
    known = prod(n for n in shape if n != -1)
    shape = tuple(kind.numel // max(known, 1) if n == -1 else n for n in shape)
    strides = viewed(kind, shape)
    if strides is None:
        raise CannotInfer(f"{kind.shape} with strides {kind.strides} has no view as {shape}")
    return _view_of(call, shape, strides)


def _permuted(call: Call, order: Sequence[int]) -> tuple[Result, ...]:
    kind = call.tensor(0)
    if sorted(order) != list(range(len(kind.shape))):
        raise CannotInfer(f"{order} is no order of {len(kind.shape)} dimensions")
    return _view_of(call, tuple(kind.shape[i] for i in order), tuple(kind.strides[i] for i in order))


def _permute(call: Call) -> tuple[Result, ...]:
    rank = len(call.tensor(0).shape)
    return _permuted(call, [dim % rank for dim in call.numbers(1)])


def _transpose(call: Call) -> tuple[Result, ...]:
    rank = len(call.tensor(0).shape)
    order = list(range(rank))
    a, b = call.number(1) % rank, call.number(2) % rank
    order[a], order[b] = order[b], order[a]
    return _permuted(call, order)


def _t(call: Call) -> tuple[Result, ...]:
    return _permuted(call, list(reversed(range(len(call.tensor(0).shape)))))


def _expand(call: Call) -> tuple[Result, ...]:
    kind, shape = call.tensor(0), list(call.numbers(1))
    lead = len(shape) - len(kind.shape)
    for i, length in enumerate(kind.shape, lead):
        shape[i] = length if shape[i] == -1 else shape[i]
        if length not in (1, shape[i]):
            raise CannotInfer(f"{kind.shape} does not expand to {shape}")
    return _view_of(call, tuple(shape), expanded(kind, tuple(shape)))


def _unsqueeze(call: Call) -> tuple[Result, ...]:
    kind = call.tensor(0)
    dim = call.number(1) % (len(kind.shape) + 1)
    stride = kind.shape[dim] * kind.strides[dim] if dim < len(kind.shape) else 1
    shape = (*kind.shape[:dim], 1, *kind.shape[dim:])
    return _view_of(call, shape, (*kind.strides[:dim], stride, *kind.strides[dim:]))


def _slice(call: Call) -> tuple[Result, ...]:
    kind, dim = call.tensor(0), call.number(1, 0) % len(call.tensor(0).shape)
    length = kind.shape[dim]
    start, end, step = call.number(2, 0), call.number(3, length), call.number(4, 1)
    start, end = (min(max(at + length if at < 0 else at, 0), length) for at in (start, end))
    count = max(0, -(-(end - start) // step))
    shape = (*kind.shape[:dim], count, *kind.shape[dim + 1 :])
    strides = (*kind.strides[:dim], kind.strides[dim] * step, *kind.strides[dim + 1 :])
    return _view_of(call, shape, strides)


def _select(call: Call) -> tuple[Result, ...]:
    kind = call.tensor(0)
    dim = call.number(1) % len(kind.shape)
    shape, strides = ((*row[:dim], *row[dim + 1 :]) for row in (kind.shape, kind.strides))
    return _view_of(call, shape, strides)


def _diagonal(call: Call) -> tuple[Result, ...]:
    kind = call.tensor(0)
    rank = len(kind.shape)
    if call.number(1, 0):
        raise CannotInfer("only the main diagonal")
    a, b = call.number(2, 0) % rank, call.number(3, 1) % rank
    rest = [i for i in range(rank) if i not in (a, b)]
    shape = (*(kind.shape[i] for i in rest), min(kind.shape[a], kind.shape[b]))
    return _view_of(call, shape, (*(kind.strides[i] for i in rest), kind.strides[a] + kind.strides[b]))


def _clone(call: Call) -> tuple[Result, ...]:
    kind = call.tensor(0)
    if call.kwargs.get("memory_format"):
        return _fresh(kind, kind.shape)
    return _fresh(kind, kind.shape, pointwise([kind], kind.shape))


def _sum_all(call: Call) -> tuple[Result, ...]:
    return _fresh(call.tensor(0), ())


def _reduced(call: Call) -> tuple[Result, ...]:
    kind = call.tensor(0)
    rank = len(kind.shape)
    given = call.args[1]
    dims = {dim % rank for dim in call.numbers(1)} if isinstance(given, tuple) and given else set(range(rank))
    keep = len(call.args) > 2 and bool(call.args[2])
    pairs = enumerate(kind.shape)
    shape = tuple(1 if i in dims else n for i, n in pairs if keep or i not in dims)
    return _fresh(kind, shape)


def _cat(call: Call) -> tuple[Result, ...]:
    parts = call.args[0]
    if not isinstance(parts, tuple):
        raise CannotInfer("what is joined is no list")
    kinds = [kind for part in parts if isinstance(kind := call.type_of(_as_value(part)), TensorType)]
    first = _same_dtype(kinds)
    dim = call.number(1, 0) % len(first.shape)
    if not all(kind.is_contiguous for kind in kinds):
        raise CannotInfer("parts that are not contiguous")
    shape = (*first.shape[:dim], sum(kind.shape[dim] for kind in kinds), *first.shape[dim + 1 :])
    return _fresh(first, shape)


def _as_value(arg: Arg) -> Value:
    if not isinstance(arg, Value):
        raise CannotInfer("a part is no tensor")
    return arg


def _softmax(call: Call) -> tuple[Result, ...]:
    kind = call.tensor(0)
    return _fresh(kind, kind.shape, pointwise([kind], kind.shape))


def _convolution(call: Call) -> tuple[Result, ...]:
    given, weight = call.tensor(0), call.tensor(1)
    stride, padding, dilation = call.numbers(3), call.numbers(4), call.numbers(5)
    if call.args[6] or not (given.is_contiguous and weight.is_contiguous):
        raise CannotInfer("a transposed convolution, or operands that are not contiguous")
    pairs = zip(given.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    spatial = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in pairs)
    return _fresh(_same_dtype([given, weight]), (given.shape[0], weight.shape[0], *spatial))


def _avg_pool(call: Call) -> tuple[Result, ...]:
    given = call.tensor(0)
    kernel = call.numbers(1)
    stride = call.numbers(2) if len(call.args) > 2 and call.args[2] else kernel
    padding = call.numbers(3) if len(call.args) > 3 else (0,) * len(kernel)
    if not given.is_contiguous or (len(call.args) > 4 and call.args[4]):
        raise CannotInfer("ceil mode, or an operand that is not contiguous")
    pairs = zip(given.shape[-len(kernel) :], kernel, stride, padding, strict=True)
    spatial = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in pairs)
    return _fresh(given, (*given.shape[: -len(kernel)], *spatial))


def _max_pool(call: Call) -> tuple[Result, ...]:
    given, (first,) = call.tensor(0), _avg_pool(call)
    assert isinstance(first.type, TensorType)
    return (first, Result(TensorType(first.type.shape, "int64", given.device, first.type.strides)))


def _padded(call: Call) -> tuple[Result, ...]:
    given, amounts = call.tensor(0), call.numbers(1)
    if not given.is_contiguous:
        raise CannotInfer("an operand that is not contiguous")
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]
    pairs = [(0, 0)] * (len(given.shape) - len(pairs)) + pairs
    shape = tuple(n + low + high for n, (low, high) in zip(given.shape, pairs, strict=True))
    return _fresh(given, shape)


def _full(call: Call) -> tuple[Result, ...]:
    dtype, device = call.kwargs.get("dtype"), call.kwargs.get("device")
    if not isinstance(dtype, Symbol) or not isinstance(device, Symbol):
        raise CannotInfer("a filling of no given dtype or device")
    shape = call.numbers(0)
    return (Result(TensorType(shape, dtype.name, device.name, contiguous_strides(shape))),)


def _index_select(call: Call) -> tuple[Result, ...]:
    given, index = call.tensor(0), call.tensor(2)
    dim = call.number(1) % len(given.shape)
    if len(index.shape) != 1 or not given.is_contiguous:
        raise CannotInfer("an index that is no vector, or an operand that is not contiguous")
    return _fresh(given, (*given.shape[:dim], index.shape[0], *given.shape[dim + 1 :]))


TABLE: Mapping[str, Inference] = {
    **{f"aten.{name}.Tensor": _pointwise for name in ("add", "sub", "mul", "div")},
    **{f"aten.{name}.default": _pointwise for name in ("maximum", "minimum")},
    **{f"aten.{name}.Scalar": _pointwise_scalar for name in ("add", "sub", "mul", "div")},
    **{
        f"aten.{name}.default": _pointwise_scalar
        for name in ("neg", "exp", "log", "tanh", "relu", "sigmoid", "reciprocal", "sqrt", "rsqrt")
    },
    "aten.mm.default": _mm,
    "aten.bmm.default": _bmm,
    "aten.mv.default": _mv,
    "aten.dot.default": _dot,
    "aten.addmm.default": _addmm,
    "aten.view.default": _view,
    "aten._unsafe_view.default": _view,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _t,
    "aten.expand.default": _expand,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.diagonal.default": _diagonal,
    "aten.clone.default": _clone,
    "aten.sum.default": _sum_all,
    "aten.sum.dim_IntList": _reduced,
    "aten.mean.default": _sum_all,
    "aten.mean.dim": _reduced,
    "aten.amax.default": _reduced,
    "aten.cat.default": _cat,
    "aten._softmax.default": _softmax,
    "aten._log_softmax.default": _softmax,
    "aten.convolution.default": _convolution,
    "aten.avg_pool2d.default": _avg_pool,
    "aten.max_pool2d_with_indices.default": _max_pool,
    "aten.constant_pad_nd.default": _padded,
    "aten.index_select.default": _index_select,
    "aten.full.default": _full,
}
"""How each operator's outputs follow from its arguments."""
