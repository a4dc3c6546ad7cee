"""The words of rules, and how ATen says them: each operator of a rule is read from nodes and made as nodes.

Words that rules of the book use (`matmul`, `add`, `concat` ...) mean here what they mean there: operands of
pointwise words have equal ranks and broadcast along dimensions of length 1, `sum` keeps its dimension. Other
words name what the book does not have: `matvec`, `trace`, `kron`, `avg_pool` with a whole window.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod

from peakfold.graph.rewrite import bookwords
from peakfold.graph.rewrite.infer import CannotInfer
from peakfold.graph.rewrite.maker import Maker
from peakfold.graph.rewrite.words import Attrs, Reader, Reading, Writer, kinds_of, values_of
from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.types import TensorType


def readings(graph: Graph, node: Node) -> tuple[Reading, ...]:
    """Return all that the first output of a node says; it is a tensor of numbers, and alone read.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> given = (Input(0, "a", "batch", tensor(2, 3)), Input(1, "b", "batch", tensor(3, 4)))
        >>> mm = Node(2, "mm", Op("aten.mm.default"), (Value(0), Value(1)), (), (tensor(2, 4),), (None,))
        >>> [reading.op for reading in readings(Graph(given, (mm,), (Output("y", Value(2)),)), mm)]
        ['matmul']
    """
    kind = node.types[0] if node.types else None
    if not isinstance(kind, TensorType) or not kind.dtype.startswith(("float", "bfloat")):
        return ()
    if not node.op.pure or node.op.random or any(graph.users.get(value) for value in node.outputs[1:]):
        return ()
    if not graph.results.isdisjoint(node.outputs[1:]):
        return ()
    found = (reader(graph, node) for reader in READERS.get(node.op.name, ()))
    return tuple(reading for reading in found if reading is not None)


def write(maker: Maker, op: str, args: Sequence[Value], attrs: Attrs) -> Value:
    """Make the nodes of a word.

    Raises:
        CannotInfer: the word cannot be said for these operands.
    """
    writer = WRITERS.get(op)
    if writer is None:
        raise CannotInfer(f"there is no operator for {op}")
    try:
        return writer(maker, args, attrs)
    except (ValueError, IndexError) as error:
        raise CannotInfer(f"{op} of {[maker.shape(value) for value in args]}") from error


# --- reading --------------------------------------------------------------------------------------


def _plain(word: str, count: int) -> Reader:
    """Return a reader of an operator whose operands are its only arguments."""

    def read(graph: Graph, node: Node) -> Reading | None:
        if len(node.args) != count or node.kwargs or kinds_of(graph, node, count) is None:
            return None
        return Reading(word, values_of(node, count))

    return read


def _pointwise(word: str) -> Reader:
    """Return a reader of a pointwise operator of two tensors of one rank and dtype."""

    def read(graph: Graph, node: Node) -> Reading | None:
        kinds = kinds_of(graph, node, 2)
        if kinds is None or len(node.args) != 2 or node.kwargs:
            return None
        if len(kinds[0].shape) != len(kinds[1].shape) or kinds[0].dtype != kinds[1].dtype:
            return None
        return Reading(word, values_of(node, 2))

    return read


def _outer(graph: Graph, node: Node) -> Reading | None:
    """Read a column times a row, pointwise, as their product as matrices."""
    found = _pointwise("mul")(graph, node)
    if found is None:
        return None
    left, right = (graph.tensor_type(value).shape for value in found.args)
    if len(left) != 2 or 1 in (*left[:1], *right[1:]):
        return None
    return Reading("matmul", found.args) if (left[1], right[0]) == (1, 1) else None


def _scale(factor: Callable[[float], float]) -> Reader:
    """Return a reader of a tensor times, or over, a number."""

    def read(graph: Graph, node: Node) -> Reading | None:
        if len(node.args) != 2 or node.kwargs or kinds_of(graph, node, 1) is None:
            return None
        number = node.args[1]
        if isinstance(number, bool) or not isinstance(number, int | float) or not number:
            return None
        return Reading("scale", values_of(node, 1), {"by": factor(number)})

    return read


def _transpose(graph: Graph, node: Node) -> Reading | None:
    kinds = kinds_of(graph, node, 1)
    if kinds is None or not kinds[0].shape:
        return None
    rank = len(kinds[0].shape)
    if node.op.name == "aten.transpose.int":
        dims = sorted(arg % rank for arg in node.args[1:] if isinstance(arg, int))
        if dims != [rank - 2, rank - 1]:
            return None
    return Reading("transpose", values_of(node, 1)) if rank >= 2 else None


def _matvec(graph: Graph, node: Node) -> Reading | None:
    return Reading("matvec", values_of(node, 2))


def _reduction(kept: str, dropped: str) -> Reader:
    """Return a reader of a sum or mean over one dimension, kept with length 1 or dropped."""

    def read(graph: Graph, node: Node) -> Reading | None:
        kinds = kinds_of(graph, node, 1)
        dims = node.args[1] if len(node.args) > 1 else None
        if (
            kinds is None
            or node.kwargs
            or not isinstance(dims, tuple)
            or len(dims) != 1
            or not kinds[0].shape
        ):
            return None
        (dim,) = dims
        assert isinstance(dim, int)
        keep = len(node.args) > 2 and bool(node.args[2])
        return Reading(kept if keep else dropped, values_of(node, 1), {"axis": dim % len(kinds[0].shape)})

    return read


def _softmax(graph: Graph, node: Node) -> Reading | None:
    kinds = kinds_of(graph, node, 1)
    if kinds is None or node.args[2] or not isinstance(node.args[1], int) or not kinds[0].shape:
        return None
    return Reading("softmax", values_of(node, 1), {"axis": node.args[1] % len(kinds[0].shape)})


def _concat(graph: Graph, node: Node) -> Reading | None:
    parts = node.args[0]
    if not isinstance(parts, tuple) or len(parts) != 2:
        return None
    values = tuple(part for part in parts if isinstance(part, Value))
    dim = node.args[1] if len(node.args) > 1 else 0
    assert isinstance(dim, int)
    return Reading("concat", values, {"axis": dim % len(graph.tensor_type(values[0]).shape)})


def _cut(graph: Graph, node: Node) -> Reading | None:
    """Read a slice of step 1 by how much it drops at both ends."""
    kinds = kinds_of(graph, node, 1)
    if kinds is None or (len(node.args) > 4 and node.args[4] != 1):
        return None
    dim, start = (*node.args[1:3], 0, 0)[:2]
    if not isinstance(dim, int) or not isinstance(start, int):
        return None
    dim %= len(kinds[0].shape)
    length, made = kinds[0].shape[dim], node.types[0]
    assert isinstance(made, TensorType)
    low = min(start + length if start < 0 else start, length)
    attrs = {"axis": dim, "low": low, "high": length - low - made.shape[dim]}
    return Reading("slice", values_of(node, 1), attrs)


def _pick(graph: Graph, node: Node) -> Reading | None:
    kinds = kinds_of(graph, node, 1)
    if kinds is None:
        return None
    dim, index = node.args[1:3]
    assert isinstance(dim, int)
    return Reading("pick", values_of(node, 1), {"axis": dim % len(kinds[0].shape), "index": index})


def _diagonal(graph: Graph, node: Node) -> Reading | None:
    kinds = kinds_of(graph, node, 1)
    if kinds is None or len(kinds[0].shape) != 2 or any(node.args[1:2]):
        return None
    return Reading("diagonal", values_of(node, 1))


def _trace_of_diagonal(graph: Graph, node: Node) -> Reading | None:
    """Read the sum of a diagonal as a trace."""
    (value,) = values_of(node, 1) or (None,)
    inner = graph.node.get(value.node) if value is not None else None
    if inner is None or inner.op.name != "aten.diagonal.default" or len(node.args) != 1:
        return None
    found = _diagonal(graph, inner)
    return None if found is None else Reading("trace", found.args, {}, (inner.id,))


def _convolution(graph: Graph, node: Node) -> Reading | None:
    """Read an ungrouped convolution without a bias, with its whole window as one attribute."""
    kinds = kinds_of(graph, node, 2)
    if kinds is None or node.args[2] is not None or node.args[6] or node.args[8] != 1:
        return None
    return Reading("convolution", values_of(node, 2), {"window": node.args[3:6]})


def _pool(word: str) -> Reader:
    def read(graph: Graph, node: Node) -> Reading | None:
        return Reading(word, values_of(node, 1), {"window": node.args[1:]})

    return read


def _kron(graph: Graph, node: Node) -> Reading | None:
    """Read a reshaped product of ``a[m, 1, n, 1]`` and ``b[1, p, 1, q]`` as a Kronecker product."""
    (value,) = values_of(node, 1)
    inner = graph.node.get(value.node)
    if inner is None or inner.op.name != "aten.mul.Tensor" or len(inner.inputs) != 2:
        return None
    sources = [_without_ones(graph, given) for given in inner.inputs]
    if None in sources:
        return None
    a, b = (source for source in sources if source is not None)
    (m, n), (p, q) = (graph.tensor_type(source).shape for source in (a, b))
    shapes = [graph.tensor_type(given).shape for given in inner.inputs]
    made = node.types[0]
    assert isinstance(made, TensorType)
    if shapes != [(m, 1, n, 1), (1, p, 1, q)] or made.shape != (m * p, n * q):
        return None
    return Reading("kron", (a, b), {}, (inner.id, *(given.node for given in inner.inputs)))


def _without_ones(graph: Graph, value: Value) -> Value | None:
    """Return the matrix that a view with further dimensions of length 1 is of."""
    if not isinstance(graph.type(value), TensorType):
        return None
    while True:
        node = graph.node.get(value.node)
        alias = node.aliases[value.index] if node is not None else None
        if alias is None or not isinstance(graph.type(alias), TensorType):
            break
        if graph.tensor_type(alias).numel != graph.tensor_type(value).numel:
            return None
        value = alias
        if len(graph.tensor_type(value).shape) == 2:
            break
    return value if len(graph.tensor_type(value).shape) == 2 else None


def _batch(graph: Graph, node: Node) -> Reading | None:
    """Read a matrix that is expanded along a new first dimension."""
    kinds = kinds_of(graph, node, 1)
    made = node.types[0]
    if kinds is None or not isinstance(made, TensorType) or len(made.shape) != 3:
        return None
    if made.strides[0] != 0 or made.shape[0] == 1:
        return None
    source = values_of(node, 1)[0]
    if len(kinds[0].shape) == 3 and kinds[0].shape[0] == 1:
        inner = _without_ones(graph, source)
        if inner is None or graph.tensor_type(inner).strides != made.strides[1:]:
            return None
        source = inner
    if graph.tensor_type(source).shape != made.shape[1:]:
        return None
    return Reading("batch", (source,), {"size": made.shape[0]})


def _diagonal_matrix(graph: Graph, node: Node) -> Reading | None:
    kinds = kinds_of(graph, node, 1)
    if kinds is None or len(kinds[0].shape) != 1 or any(node.args[1:2]):
        return None
    return Reading("diagonal_matrix", values_of(node, 1))


_ARITHMETIC = {name: f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div")}
_ONE = ("neg", "exp", "log", "tanh", "relu", "reciprocal")

_OWN: Mapping[str, tuple[Reader, ...]] = {
    "aten.add.Tensor": (_pointwise("add"),),
    "aten.sub.Tensor": (_pointwise("sub"),),
    "aten.mul.Tensor": (_pointwise("mul"), _scale(lambda by: by), _outer),
    "aten.div.Tensor": (_pointwise("div"), _scale(lambda by: 1 / by)),
    "aten.mul.Scalar": (_scale(lambda by: by),),
    "aten.div.Scalar": (_scale(lambda by: 1 / by),),
    "aten.maximum.default": (_pointwise("maximum"),),
    **{f"aten.{name}.default": (_plain(name, 1),) for name in _ONE},
    "aten.mm.default": (_plain("matmul", 2),),
    "aten.bmm.default": (_plain("matmul", 2),),
    "aten.mv.default": (_matvec,),
    "aten.dot.default": (_plain("dot", 2),),
    "aten.addmm.default": (_plain("addmm", 3),),
    "aten.t.default": (_transpose,),
    "aten.transpose.int": (_transpose,),
    "aten.sum.dim_IntList": (_reduction("sum", "reduce_sum"),),
    "aten.mean.dim": (_reduction("mean", "reduce_mean"),),
    "aten.sum.default": (_plain("total", 1), _trace_of_diagonal),
    "aten.trace.default": (_plain("trace", 1),),
    "aten.diagonal.default": (_diagonal,),
    "aten._softmax.default": (_softmax,),
    "aten.cat.default": (_concat,),
    "aten.slice.Tensor": (_cut,),
    "aten.select.int": (_pick,),
    "aten.convolution.default": (_convolution,),
    "aten.avg_pool2d.default": (_pool("avg_pool"),),
    "aten._unsafe_view.default": (_kron,),
    "aten.view.default": (_kron, _batch),
    "aten.expand.default": (_batch,),
    "aten.diag_embed.default": (_diagonal_matrix,),
}

READERS: Mapping[str, tuple[Reader, ...]] = {
    name: (*_OWN.get(name, ()), *bookwords.READERS.get(name, ())) for name in (*_OWN, *bookwords.READERS)
}
"""How each ATen operator is read; an operator may say several things."""

STRETCHING = frozenset((*_ARITHMETIC.values(), "aten.maximum.default"))
"""Operators that stretch axes of length 1."""

COMMUTATIVE = frozenset(("add", "mul", "maximum"))


# --- making ---------------------------------------------------------------------------------------


def _call(op: str) -> Writer:
    return lambda maker, args, attrs: maker.call(op, *args)


def _make_matmul(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    ranks = [len(maker.shape(value)) for value in args]
    if ranks == [2, 2]:
        return maker.call("aten.mm.default", *args)
    if ranks == [3, 3]:
        return maker.call("aten.bmm.default", *args)
    raise CannotInfer(f"no product of ranks {ranks}")


def _make_transpose(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    rank = len(maker.shape(args[0]))
    if rank == 2:
        return maker.call("aten.t.default", args[0])
    return maker.call("aten.transpose.int", args[0], rank - 2, rank - 1)


def _make_scale(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    return maker.call("aten.mul.Tensor", args[0], attrs["by"])


def _over(op: str, keep: bool) -> Writer:
    return lambda maker, args, attrs: maker.call(op, args[0], (attrs["axis"],), keep)


def _make_softmax(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    return maker.call("aten._softmax.default", args[0], attrs["axis"], False)


def _make_concat(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    return maker.call("aten.cat.default", tuple(args), attrs["axis"])


def _make_slice(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    axis, low, high = attrs["axis"], attrs.get("low", 0), attrs.get("high", 0)
    assert isinstance(axis, int)
    assert isinstance(low, int)
    assert isinstance(high, int)
    length = maker.shape(args[0])[axis]
    return maker.call("aten.slice.Tensor", args[0], axis, low, length - high)


def _make_pick(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    return maker.call("aten.select.int", args[0], attrs["axis"], attrs["index"])


def _make_trace(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    return maker.call("aten.sum.default", maker.call("aten.diagonal.default", args[0]))


def _make_convolution(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    window = attrs["window"]
    assert isinstance(window, tuple)
    spatial = len(maker.shape(args[1])) - 2
    return maker.call("aten.convolution.default", *args, None, *window, False, (0,) * spatial, 1)


def _make_pool(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    window = attrs["window"]
    assert isinstance(window, tuple)
    return maker.call("aten.avg_pool2d.default", args[0], *window)


def _make_kron(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    (m, n), (p, q) = (maker.shape(value) for value in args)
    left = maker.call("aten.view.default", args[0], (m, 1, n, 1))
    right = maker.call("aten.view.default", args[1], (1, p, 1, q))
    return maker.call("aten.view.default", maker.call("aten.mul.Tensor", left, right), (m * p, n * q))


def _make_kron_apply(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    """Make ``kron(a, b) x`` without the large matrix: a along the outer index, then b along the inner."""
    a, b, x = args
    (m, n), (p, q) = maker.shape(a), maker.shape(b)
    columns = prod(maker.shape(x)[1:])
    outer = maker.call("aten.mm.default", a, maker.call("aten.view.default", x, (n, q * columns)))
    if columns == 1:
        rows = maker.call("aten.view.default", outer, (m, q))
        inner = maker.call("aten.mm.default", rows, maker.call("aten.t.default", b))
    else:
        cube = maker.call("aten.view.default", outer, (m, q, columns))
        inner = maker.call("aten.bmm.default", maker.call("aten.expand.default", b, (m, p, q)), cube)
    return maker.call("aten.view.default", inner, (m * p, *maker.shape(x)[1:]))


def _make_merged(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    """Make the products of many matrices with one as one product."""
    (size, m, k), (_, n) = maker.shape(args[0]), maker.shape(args[1])
    rows = maker.call("aten.view.default", args[0], (size * m, k))
    return maker.call("aten.view.default", maker.call("aten.mm.default", rows, args[1]), (size, m, n))


def _make_column(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    return maker.call("aten.unsqueeze.default", args[0], 1)


def _make_row(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    return maker.call("aten.unsqueeze.default", args[0], 0)


def _make_product_1x1(maker: Maker, args: Sequence[Value], attrs: Attrs) -> Value:
    """Make the kernel of two 1x1 convolutions one after the other: the product of their matrices."""
    (outputs, hidden, *ones), (_, inputs, *_) = (maker.shape(value) for value in args)
    left = maker.call("aten.view.default", args[0], (outputs, hidden))
    right = maker.call("aten.view.default", args[1], (hidden, inputs))
    return maker.call(
        "aten.view.default", maker.call("aten.mm.default", left, right), (outputs, inputs, *ones)
    )


WRITERS: Mapping[str, Writer] = {
    **bookwords.WRITERS,
    **{name: _call(op) for name, op in _ARITHMETIC.items()},
    **{name: _call(f"aten.{name}.default") for name in (*_ONE, "maximum", "addmm")},
    "matmul": _make_matmul,
    "matvec": _call("aten.mv.default"),
    "dot": _call("aten.dot.default"),
    "transpose": _make_transpose,
    "scale": _make_scale,
    "sum": _over("aten.sum.dim_IntList", True),
    "mean": _over("aten.mean.dim", True),
    "reduce_sum": _over("aten.sum.dim_IntList", False),
    "reduce_mean": _over("aten.mean.dim", False),
    "total": _call("aten.sum.default"),
    "trace": _make_trace,
    "diagonal": _call("aten.diagonal.default"),
    "softmax": _make_softmax,
    "concat": _make_concat,
    "slice": _make_slice,
    "pick": _make_pick,
    "convolution": _make_convolution,
    "avg_pool": _make_pool,
    "kron": _make_kron,
    "kron_apply": _make_kron_apply,
    "merged": _make_merged,
    "column": _make_column,
    "row": _make_row,
    "product_1x1": _make_product_1x1,
}
"""How each word is made."""

EXACT = frozenset(
    ("transpose", "slice", "pick", "concat", "neg", "relu", "maximum", "diagonal", "batch", "column", "row",
     "max", "maxpool", "pad", "gather", "split", "expand")
)  # fmt: skip
"""Words that round nothing: a rule between such words keeps every bit."""
