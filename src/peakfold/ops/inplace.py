"""Which operators may write an output into the buffer of an operand that dies there, and how.

An entry holds only what is bit-equal to the functional form and allocates nothing more than it; the
tests try every line on many shapes, strides and dtypes. There are two calling conventions:

- an *in-place overload* writes its first argument: ``form(*args, **kwargs)``;
- an *out overload* takes the buffer by keyword: ``form(*args, **kwargs, out=operand)``. The keyword is
  ``out`` or, for gradients of activations, ``grad_input``. Any operand may be the buffer.

In both, the arguments are those of the functional form, in the same order, and the result is the buffer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from peakfold.ir.graph import Arg, Graph, Node, Value
from peakfold.ir.types import TensorType, Type


@dataclass(frozen=True, slots=True)
class InPlace:
    """One way to write an output into the buffer of an operand.

    Attributes:
        output: index of the output of the node.
        operand: the argument whose storage takes the output; may be a view of all of that storage.
        form: the overload to call, e.g. ``"aten.add_.Tensor"`` or ``"aten.mul.out"``.
        keyword: the keyword that takes the operand a second time, ``"out"`` or ``"grad_input"``; empty
            for an in-place overload, whose first argument is the operand.
    """

    output: int
    operand: Value
    form: str
    keyword: str = ""


@dataclass(frozen=True, slots=True)
class Forms:
    """The in-place forms of one operator.

    Attributes:
        inplace: the overload that writes its first argument, or empty.
        out: the overload that writes any operand, given by ``keyword``, or empty.
        keyword: ``"out"`` or ``"grad_input"``.
        pointwise: element i of the output depends on element i of the operand only, so that another
            argument may be the same memory, element for element.
        dtypes: dtypes for which the forms hold; empty for all.
    """

    inplace: str = ""
    out: str = ""
    keyword: str = "out"
    pointwise: bool = True
    dtypes: frozenset[str] = frozenset()


_FULL = frozenset({"float32", "float64"})


def _both(base: str, inplace: str, out: str) -> Forms:
    return Forms(f"aten.{base}_.{inplace}", f"aten.{base}.{out}")


def _only(base: str, overload: str = "default") -> Forms:
    return Forms(f"aten.{base}_.{overload}")


def _gradient(base: str) -> Forms:
    return Forms(out=f"aten.{base}.grad_input", keyword="grad_input")


def _scattered(base: str, overload: str) -> Forms:
    return Forms(f"aten.{base}_.{overload}", pointwise=False)


def _scattered_only(form: str) -> Forms:
    return Forms(form, pointwise=False)


def _rows(base: str, keyword: str = "out") -> Forms:
    return Forms(out=f"aten.{base}.out", keyword=keyword, dtypes=_FULL)


FORMS: dict[str, Forms] = {
    # arithmetic
    "aten.add.Tensor": _both("add", "Tensor", "out"),
    "aten.sub.Tensor": _both("sub", "Tensor", "out"),
    "aten.mul.Tensor": _both("mul", "Tensor", "out"),
    "aten.div.Tensor": _both("div", "Tensor", "out"),
    "aten.div.Tensor_mode": _both("div", "Tensor_mode", "out_mode"),
    "aten.add.Scalar": _only("add", "Scalar"),
    "aten.sub.Scalar": _only("sub", "Scalar"),
    "aten.mul.Scalar": Forms("aten.mul_.Tensor"),  # mul_.Scalar rounds a bfloat16 factor first
    "aten.div.Scalar": _only("div", "Scalar"),
    "aten.div.Scalar_mode": _only("div", "Scalar_mode"),
    "aten.pow.Tensor_Scalar": _only("pow", "Scalar"),
    "aten.pow.Tensor_Tensor": _both("pow", "Tensor", "Tensor_Tensor_out"),
    "aten.pow.Scalar": Forms(out="aten.pow.Scalar_out"),
    "aten.fmod.Tensor": _both("fmod", "Tensor", "Tensor_out"),
    "aten.remainder.Tensor": _both("remainder", "Tensor", "Tensor_out"),
    "aten.atan2.default": _both("atan2", "default", "out"),
    "aten.hypot.default": _both("hypot", "default", "out"),
    "aten.copysign.Tensor": _both("copysign", "Tensor", "out"),
    "aten.maximum.default": Forms(out="aten.maximum.out"),
    "aten.minimum.default": Forms(out="aten.minimum.out"),
    # optimizers
    "aten.lerp.Scalar": _both("lerp", "Scalar", "Scalar_out"),
    "aten.lerp.Tensor": _both("lerp", "Tensor", "Tensor_out"),
    "aten.addcmul.default": _both("addcmul", "default", "out"),
    "aten.addcdiv.default": _both("addcdiv", "default", "out"),
    # one argument
    "aten.abs.default": _only("abs"),
    "aten.acos.default": _only("acos"),
    "aten.asin.default": _only("asin"),
    "aten.atan.default": _only("atan"),
    "aten.ceil.default": _only("ceil"),
    "aten.cos.default": _only("cos"),
    "aten.cosh.default": _only("cosh"),
    "aten.erf.default": _only("erf"),
    "aten.erfc.default": _only("erfc"),
    "aten.exp.default": _only("exp"),
    "aten.exp2.default": _only("exp2"),
    "aten.expm1.default": _only("expm1"),
    "aten.floor.default": _only("floor"),
    "aten.frac.default": _only("frac"),
    "aten.log.default": _only("log"),
    "aten.log10.default": _only("log10"),
    "aten.log1p.default": _only("log1p"),
    "aten.log2.default": _only("log2"),
    "aten.neg.default": _only("neg"),
    "aten.reciprocal.default": _only("reciprocal"),
    "aten.round.default": _only("round"),
    "aten.rsqrt.default": _only("rsqrt"),
    "aten.sigmoid.default": _only("sigmoid"),
    "aten.sign.default": _only("sign"),
    "aten.sin.default": _only("sin"),
    "aten.sinh.default": _only("sinh"),
    "aten.sqrt.default": _only("sqrt"),
    "aten.square.default": _only("square"),
    "aten.tan.default": _only("tan"),
    "aten.tanh.default": _only("tanh"),
    "aten.trunc.default": _only("trunc"),
    # activations
    "aten.elu.default": _only("elu"),
    "aten.gelu.default": _only("gelu"),
    "aten.hardsigmoid.default": _only("hardsigmoid"),
    "aten.hardswish.default": _only("hardswish"),
    "aten.hardtanh.default": _only("hardtanh"),
    "aten.leaky_relu.default": _only("leaky_relu"),
    "aten.mish.default": _only("mish"),
    "aten.relu.default": _only("relu"),
    "aten.silu.default": _only("silu"),
    "aten.softplus.default": Forms(out="aten.softplus.out"),
    "aten.threshold.default": _only("threshold"),
    # their gradients
    "aten.elu_backward.default": _gradient("elu_backward"),
    "aten.gelu_backward.default": _gradient("gelu_backward"),
    "aten.hardsigmoid_backward.default": _gradient("hardsigmoid_backward"),
    "aten.hardtanh_backward.default": _gradient("hardtanh_backward"),
    "aten.leaky_relu_backward.default": _gradient("leaky_relu_backward"),
    "aten.sigmoid_backward.default": _gradient("sigmoid_backward"),
    "aten.silu_backward.default": _gradient("silu_backward"),
    "aten.softplus_backward.default": _gradient("softplus_backward"),
    "aten.tanh_backward.default": _gradient("tanh_backward"),
    "aten.threshold_backward.default": _gradient("threshold_backward"),
    # each row is read before it is written
    "aten._softmax.default": _rows("_softmax"),
    "aten._log_softmax.default": _rows("_log_softmax"),
    "aten._softmax_backward_data.default": _rows("_softmax_backward_data", "grad_input"),
    "aten._log_softmax_backward_data.default": _rows("_log_softmax_backward_data"),
    # choice and limits
    "aten.where.self": Forms(out="aten.where.self_out"),
    "aten.masked_fill.Scalar": _only("masked_fill", "Scalar"),
    "aten.masked_fill.Tensor": _only("masked_fill", "Tensor"),
    "aten.clamp.default": _only("clamp"),
    "aten.clamp.Tensor": _both("clamp", "Tensor", "Tensor_out"),
    "aten.clamp_min.default": _only("clamp_min"),
    "aten.clamp_max.default": _only("clamp_max"),
    "aten.triu.default": _only("triu"),
    "aten.tril.default": _only("tril"),
    # booleans and comparisons (bool operands only, by their type)
    "aten.logical_not.default": _only("logical_not"),
    "aten.logical_and.default": _both("logical_and", "default", "out"),
    "aten.logical_or.default": _both("logical_or", "default", "out"),
    "aten.bitwise_not.default": _only("bitwise_not"),
    "aten.bitwise_and.Tensor": _both("bitwise_and", "Tensor", "Tensor_out"),
    "aten.bitwise_or.Tensor": _both("bitwise_or", "Tensor", "Tensor_out"),
    "aten.bitwise_xor.Tensor": _both("bitwise_xor", "Tensor", "Tensor_out"),
    "aten.bitwise_right_shift.Tensor_Scalar": _only("bitwise_right_shift", "Tensor_Scalar"),
    "aten.eq.Tensor": _both("eq", "Tensor", "Tensor_out"),
    "aten.ne.Tensor": _both("ne", "Tensor", "Tensor_out"),
    # overwritten or written in part
    "aten.fill.Scalar": _only("fill", "Scalar"),
    "aten.zero.default": _only("zero"),
    "aten.copy.default": _scattered("copy", "default"),
    "aten.index_put.default": _scattered("index_put", "default"),
    "aten.index_add.default": _scattered("index_add", "default"),
    "aten.scatter.src": _scattered("scatter", "src"),
    "aten.scatter.value": _scattered("scatter", "value"),
    "aten.scatter_add.default": _scattered("scatter_add", "default"),
    # random: what the operand held is not read
    "aten.bernoulli.p": _only("bernoulli", "float"),
    "aten.uniform.default": _only("uniform"),
    "aten.normal_functional.default": _only("normal"),
    "aten.exponential.default": _only("exponential"),
}

LOOP = "peakfold.loop"
"""The operator of a node that stands for a region."""
OVER = "over"
"""What says of a loop which outputs may be written over which of its arguments: pairs of places."""

PLACE = "peakfold.place.default"
"""Writes a part into its place of a tensor: the in-place overload that ``aten.slice_scatter`` lacks."""

BORDERS: dict[str, Forms] = {
    "aten.slice_scatter.default": _scattered_only(PLACE),
    "aten.addmm.default": _scattered_only("aten.addmm_.default"),
    "aten.baddbmm.default": _scattered_only("aten.baddbmm_.default"),
}
"""What writes a part of a result into it, or adds to it."""


def reusable_operands(graph: Graph, node: Node) -> tuple[InPlace, ...]:
    """Return the ways to write an output of a node into the buffer of one of its operands.

    Only memory and types are looked at: that the operand dies at the node, or is the state that the
    output replaces, is the caller's to know. In-place overloads come before out overloads.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> given = tuple(Input(i, f"x{i}", "batch", tensor(2, 2)) for i in range(2))
        >>> add = Node(2, "add", Op("aten.add.Tensor"), (Value(0), Value(1)), (), (tensor(2, 2),), (None,))
        >>> graph = Graph(given, (add,), (Output("y", Value(2)),))
        >>> for way in reusable_operands(graph, add):
        ...     print(way.form, way.keyword, way.operand.node)
        aten.add_.Tensor  0
        aten.add.out out 1
    """
    over = dict(node.kwargs).get(OVER) if node.op.name == LOOP else None
    if isinstance(over, tuple):
        return tuple(_over(graph, node, over))
    forms = FORMS.get(node.op.name) or BORDERS.get(node.op.name)
    if forms is None or len(node.types) != 1 or not _allowed(forms, node.types[0]):
        return ()
    fitting = [value for value in dict.fromkeys(node.inputs) if _fits(graph, node, forms, value)]
    return tuple(_ways(node, forms, fitting))


def _over(graph: Graph, node: Node, pairs: tuple[Arg, ...]) -> Iterator[InPlace]:
    for pair in pairs:
        assert isinstance(pair, tuple)
        output, place = pair
        assert isinstance(output, int)
        assert isinstance(place, int)
        operand = node.args[place]
        if isinstance(operand, Value) and graph.type(operand) == node.types[output]:
            yield InPlace(output, operand, LOOP)


def is_placed(graph: Graph, node: Node) -> bool:
    """Return whether a node writes a part into its fixed place of a tensor that nothing needs after it.

    In the order of the program, that is; all that it costs then is the part.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> given = Input(0, "x", "batch", tensor(4, 2)), Input(1, "part", "batch", tensor(1, 2))
        >>> exp = Node(2, "exp", Op("aten.exp.default"), (Value(0),), (), (tensor(4, 2),), (None,))
        >>> def put(whole):
        ...     args = (Value(whole), Value(1), 0, 0, 1)
        ...     return Node(3, "put", Op("aten.slice_scatter.default"), args, (), (tensor(4, 2),), (None,))
        >>> graphs = [Graph(given, (exp, put(whole)), (Output("y", Value(3)),)) for whole in (2, 0)]
        >>> [is_placed(graph, graph.node[3]) for graph in graphs]
        [True, False]
    """
    fixed = node.op.name == "aten.slice_scatter.default" and not isinstance(node.args[3], Value)
    if not fixed or not reusable_operands(graph, node):
        return False
    whole = node.args[0]
    assert isinstance(whole, Value)
    owner = graph.storage(whole)
    if owner.node in graph.input or any(graph.storage(value) == owner for value in graph.results):
        return False
    later = graph.nodes[graph.nodes.index(node) + 1 :]
    return not any(graph.storage(value) == owner for one in later for value in one.inputs)


def _ways(node: Node, forms: Forms, fitting: list[Value]) -> Iterator[InPlace]:
    first = node.args[0] if node.args else None
    for operand in fitting:
        if forms.inplace and operand == first:
            yield InPlace(0, operand, forms.inplace)
        elif forms.out:
            yield InPlace(0, operand, forms.out, forms.keyword)


def _allowed(forms: Forms, kind: Type) -> bool:
    return isinstance(kind, TensorType) and (not forms.dtypes or kind.dtype in forms.dtypes)


def _fits(graph: Graph, node: Node, forms: Forms, operand: Value) -> bool:
    """Whether the operand has the output's type, is its whole storage, and no other argument overlaps it."""
    kind = graph.type(operand)
    if kind != node.types[0] or not _is_whole(graph, operand):
        return False
    storage = graph.storage(operand)
    sharing = [value for value in node.inputs if graph.storage(value) == storage]
    return len(sharing) == 1 or (forms.pointwise and all(graph.type(value) == kind for value in sharing))


def _is_whole(graph: Graph, operand: Value) -> bool:
    """Whether a Value covers each byte of its storage exactly once."""
    kind = graph.tensor_type(operand)
    return is_dense(kind) and kind.nbytes == graph.nbytes(operand) > 0


def is_dense(kind: TensorType) -> bool:
    """Whether the elements fill their memory, each in a place of its own.

    Example:
        >>> from peakfold.ir.types import tensor
        >>> is_dense(tensor(2, 3, strides=(1, 2))), is_dense(tensor(2, 2, strides=(0, 3)))
        (True, False)
    """
    step = 1
    for stride, length in sorted(zip(kind.strides, kind.shape, strict=True)):
        if length == 1:
            continue
        if stride != step:
            return False
        step *= length
    return True
