"""Every line of the table of links: computed in parts and joined, an operator gives the whole."""

from dataclasses import replace

import pytest
import torch
from tests.torch.parts import call, corners, in_parts

from peakfold.bridge.runtime.interpret import operator_of
from peakfold.ir.graph import Graph, Input, Node, Op, Symbol, Value
from peakfold.ir.types import ScalarType, TensorType
from peakfold.ops.links import Factor, Slot, call_of, links_of
from peakfold.ops.links.table import TABLE
from peakfold.ops.links.windows import INDICES
from peakfold.ops.strides import reads_strides
from peakfold.plan.fission.transfer import transfer

torch.set_num_threads(1)
FLOAT, LONG, BOOL = torch.float64, torch.int64, torch.bool


def whole_numbers(*shape):
    """Small integers as floats: sums and products of them are exact in any order."""
    return torch.randint(-4, 5, shape).to(FLOAT)


def near_one(*shape):
    return torch.rand(shape, dtype=FLOAT) * 0.4 + 0.3


def labels(high, *shape):
    return torch.randint(0, high, shape)


def flags(*shape):
    return torch.rand(shape) < 0.5


def f64():
    return Symbol("dtype", "float64")


W, N = whole_numbers, near_one
ALL = (True, True, True)

# Arguments of calls by operator; those of a plain element-wise operator are drawn from its schema.
CALLS = {
    "mm.default": [(W(6, 4), W(4, 8))],
    "addmm.default": [(W(8), W(6, 4), W(4, 8)), (W(6, 8), W(6, 4), W(4, 8))],
    "bmm.default": [(W(4, 6, 2), W(4, 2, 3))],
    "baddbmm.default": [(W(4, 6, 3), W(4, 6, 2), W(4, 2, 3))],
    "mv.default": [(W(6, 4), W(4))],
    "dot.default": [(W(6), W(6))],
    "convolution.default": [
        (W(4, 4, 6, 5), W(6, 4, 3, 3), W(6), (1, 1), (1, 1), (1, 1), False, (0, 0), 1),
        (W(4, 4, 6, 5), W(6, 4, 3, 3), None, (2, 2), (1, 1), (1, 1), False, (0, 0), 1),
        (W(4, 4, 6, 5), W(4, 1, 3, 3), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 4),
        (W(4, 4, 3, 2), W(4, 6, 2, 2), W(6), (2, 2), (0, 0), (1, 1), True, (0, 0), 1),
        (W(4, 4, 8), W(6, 4, 3), W(6), (1,), (1,), (1,), False, (0,), 1),
    ],
    "convolution_backward.default": [
        (W(4, 6, 6, 5), W(4, 4, 6, 5), W(6, 4, 3, 3), bias, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, mask)
        for bias, mask in (((6,), (True, True, True)), ((0,), (True, True, False)))
    ]
    + [
        (W(4, 6, 6, 4), W(4, 4, 3, 2), W(4, 6, 2, 2), (6,), (2, 2), (0, 0), (1, 1), True, (0, 0), 1, ALL)
    ],
    "view.default": [(W(6, 4), (2, 3, 2, 2)), (W(4, 3, 2), (12, 2)), (W(4, 6), (3, 8))],
    "reshape.default": [(W(4, 6), (2, 12)), (W(2, 4, 3, 3), (1, 8, 3, 3))],
    "_unsafe_view.default": [(W(4, 6), (24,))],
    "_reshape_copy.default": [(W(4, 6), (24,))],
    "squeeze.dim": [(W(4, 1, 6), 1)],
    "transpose.int": [(W(4, 6, 2), 0, -1)],
    "t.default": [(W(4, 6),), (W(4),)],
    "permute.default": [(W(4, 6, 2), (2, 0, 1))],
    "unsqueeze.default": [(W(4, 6), 1), (W(4, 6), -1)],
    "select.int": [(W(4, 6, 2), 1, 3)],
    "expand.default": [(W(4, 1, 6), (4, 3, 6)), (W(6), (4, 6)), (W(1, 6), (4, -1))],
    "repeat.default": [(W(6), (4,)), (W(4, 6), (2, 1, 3))],
    "alias.default": [(W(4, 6),)],
    "detach.default": [(W(4, 6),)],
    "clone.default": [(W(4, 6),)],
    "lift_fresh_copy.default": [(W(4, 6),)],
    "slice.Tensor": [(W(4, 6), 1, 1, 5), (W(4, 6), 0, 0, 4)],
    "split.Tensor": [(W(4, 6), 2, 1)],
    "split_with_sizes.default": [(W(4, 6), (2, 4), 1)],
    "unbind.int": [(W(4, 3, 6), 1)],
    "flip.default": [(W(4, 6), (1,))],
    "cat.default": [((W(4, 6), W(4, 2)), 1), ((W(4, 6), W(4, 6)), 0)],
    "stack.default": [((W(4, 6), W(4, 6)), 1)],
    "select_backward.default": [(W(4, 2), (4, 6, 2), 1, 3)],
    "slice_backward.default": [(W(4, 2), (4, 6), 1, 1, 3, 1)],
    "select_scatter.default": [(W(4, 6, 2), W(4, 2), 1, 3)],
    "slice_scatter.default": [(W(4, 6), W(4, 2), 1, 1, 3)],
    "constant_pad_nd.default": [(W(4, 6), (1, 2), 0), (W(4, 6, 3), (0, 0, 1, 1), 2.0)],
    "roll.default": [(W(4, 6), (2,), (1,)), (W(4, 6), (2,))],
    "scatter.src": [(W(4, 6), 1, labels(6, 4, 2), W(4, 2)), (W(4, 6), 1, labels(6, 3, 2), W(4, 2))],
    "scatter_add.default": [(W(4, 6), 1, labels(6, 4, 2), W(4, 2))],
    "index_add.default": [(W(4, 6), 1, labels(6, 3), W(4, 3))],
    "topk.default": [(N(4, 6), 3, 1)],
    "fill.Tensor": [(W(4, 6), W())],
    "native_group_norm.default": [(N(4, 6, 5), N(6), N(6), 4, 6, 5, 3, 1e-5)],
    "native_group_norm_backward.default": [
        (N(4, 6, 5), N(4, 6, 5), N(4, 3), N(4, 3), N(6), 4, 6, 5, 3, (True, True, True))
    ],
    "upsample_bilinear2d.default": [(N(4, 2, 3, 3), (6, 6), False)],
    "upsample_nearest2d.default": [(N(4, 2, 3, 3), (6, 6))],
    "upsample_bilinear2d_backward.default": [(N(4, 2, 6, 6), (6, 6), (4, 2, 3, 3), False)],
    "upsample_nearest2d_backward.default": [(N(4, 2, 6, 6), (6, 6), (4, 2, 3, 3))],
    "index_select.default": [(W(4, 6), 1, labels(6, 3))],
    "gather.default": [(W(4, 6), 1, labels(6, 4, 2)), (W(4, 6), 1, labels(6, 4, 4))],
    "index.Tensor": [
        (W(5, 6), (labels(5, 4),)),
        (W(5, 6, 2), (labels(5, 4, 1), labels(6, 1, 3))),
    ],
    "embedding.default": [(W(7, 6), labels(7, 4, 2))],
    "embedding_dense_backward.default": [(W(4, 2, 6), labels(7, 4, 2), 7, 0, False)],
    "sum.dim_IntList": [(W(4, 6, 2), (0, 2)), (W(4, 6, 2), (1,), True)],
    "sum.default": [(W(4, 6),)],
    "mean.dim": [(W(4, 6, 2), (1,), True)],
    "amax.default": [(W(4, 6), (1,))],
    "amin.default": [(W(4, 6), (0,), True)],
    "all.default": [(flags(4, 6),)],
    "any.dim": [(flags(4, 6), 1)],
    "prod.default": [(W(2, 3),)],
    "var.correction": [(N(4, 6, 3), (1,))],
    "std.correction": [(N(4, 6, 3), (1,))],
    "var_mean.correction": [(N(4, 6, 3), (2,))],
    "std_mean.correction": [(N(4, 6, 3), (2,))],
    "logsumexp.default": [(N(4, 6), (1,))],
    "argmax.default": [(N(4, 6), 1)],
    "argmin.default": [(N(4, 6), 1)],
    "linalg_vector_norm.default": [(N(4, 6), 2, (1,))],
    "clamp.default": [(W(4, 6), -1, 2)],
    "cumsum.default": [(W(4, 6), 1)],
    "cumprod.default": [(W(4, 6), 1)],
    "sort.default": [(N(4, 6), 1)],
    "_softmax.default": [(N(4, 6), 1, False), (N(4, 6, 2), -1, False)],
    "_log_softmax.default": [(N(4, 6), 1, False)],
    "_safe_softmax.default": [(N(4, 6), 1)],
    "softmax.int": [(N(4, 6), 1)],
    "log_softmax.int": [(N(4, 6), 1)],
    "_softmax_backward_data.default": [(N(4, 6), N(4, 6), 1, f64())],
    "_log_softmax_backward_data.default": [(N(4, 6), N(4, 6), 1, f64())],
    "native_layer_norm.default": [(N(4, 3, 6), (6,), N(6), N(6), 1e-5), (N(4, 6), (6,), None, None, 1e-5)],
    "native_layer_norm_backward.default": [
        (N(4, 3, 6), N(4, 3, 6), (6,), N(4, 3, 1), N(4, 3, 1), N(6), N(6), (True, True, True))
    ],
    "native_batch_norm.default": [
        (N(4, 6, 3), N(6), N(6), N(6), N(6), False, 0.1, 1e-5),
        (N(4, 6, 3), N(6), None, None, None, True, 0.1, 1e-5),
    ],
    "_native_batch_norm_legit.no_stats": [],
    "_native_batch_norm_legit_functional.default": [(N(4, 6, 3), N(6), N(6), N(6), N(6), True, 0.1, 1e-5)],
    "native_batch_norm_backward.default": [
        (N(4, 6, 3), N(4, 6, 3), N(6), N(6), N(6), N(6), N(6), training, 1e-5, (True, True, True))
        for training in (True, False)
    ],
    "_scaled_dot_product_flash_attention_for_cpu.default": [
        (N(2, 4, 6, 8), N(2, 4, 6, 8), N(2, 4, 6, 8), 0.0, causal) for causal in (False, True)
    ],
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": [],
    "nll_loss_forward.default": [
        *((N(6, 4), labels(4, 6), None, reduction, -100) for reduction in (0, 1, 2)),
        *((W(6, 7), labels(7, 6), W(7), reduction, ignored) for reduction in (0, 2) for ignored in (0, 5)),
        (W(7), labels(7), None, 2, -100),
    ],
    "nll_loss2d_forward.default": [(N(6, 4, 2, 3), labels(4, 6, 2, 3), N(4), r, 1) for r in (0, 2)],
    "nll_loss_backward.default": [
        (N(), N(6, 4), labels(4, 6), None, 1, -100, N()),
        (N(6), N(6, 4), labels(4, 6), None, 0, -100, N()),
        *((W(), W(6, 7), labels(7, 6), W(7), 2, ignored, W()) for ignored in (-100, 0, 5)),
    ],
    "nll_loss2d_backward.default": [(N(), N(6, 4, 2, 3), labels(4, 6, 2, 3), N(4), 2, 1, N())],
    "mse_loss.default": [(W(4, 6), W(4, 6), 0), (W(4, 6), W(4, 6), 2), (W(4, 6), W(4, 6), 1)],
    "smooth_l1_loss.default": [(W(4, 6), W(4, 6), 2, 1.0)],
    "huber_loss.default": [(W(4, 6), W(4, 6), 2, 1.0)],
    "binary_cross_entropy.default": [(N(4, 6), N(4, 6), None, 2)],
    "binary_cross_entropy_with_logits.default": [(N(4, 6), N(4, 6), None, None, 2)],
    "mse_loss_backward.default": [(W(), W(4, 6), W(4, 6), 2), (W(4, 6), W(4, 6), W(4, 6), 0)],
    "smooth_l1_loss_backward.default": [(W(), W(4, 6), W(4, 6), 2, 1.0)],
    "huber_loss_backward.default": [(W(), W(4, 6), W(4, 6), 2, 1.0)],
    "binary_cross_entropy_backward.default": [(N(), N(4, 6), N(4, 6), None, 2)],
    "max_pool2d_with_indices.default": [(N(2, 4, 6, 6), (2, 2), (2, 2))],
    "max_pool2d_with_indices_backward.default": [
        (N(2, 4, 3, 3), N(2, 4, 6, 6), (2, 2), (2, 2), (0, 0), (1, 1), False, corners(2, 4, 6, 6))
    ],
    "avg_pool2d.default": [(N(2, 4, 6, 6), (2, 2))],
    "avg_pool2d_backward.default": [
        (N(2, 4, 3, 3), N(2, 4, 6, 6), (2, 2), (2, 2), (0, 0), False, True, None)
    ],
    "_adaptive_avg_pool2d.default": [(N(2, 4, 6, 6), (2, 2))],
    "_adaptive_avg_pool2d_backward.default": [(N(2, 4, 2, 2), N(2, 4, 6, 6))],
    "replication_pad2d.default": [(N(2, 4, 6, 6), (1, 1, 0, 2))],
    "reflection_pad2d.default": [(N(2, 4, 6, 6), (1, 1, 0, 2))],
    "replication_pad2d_backward.default": [(N(2, 4, 8, 8), N(2, 4, 6, 6), (1, 1, 0, 2))],
    "reflection_pad2d_backward.default": [(N(2, 4, 8, 8), N(2, 4, 6, 6), (1, 1, 0, 2))],
    "where.self": [(flags(4, 6), W(4, 6), W(6)), (flags(4, 1), W(4, 6), W(4, 6))],
    "masked_fill.Scalar": [(W(4, 6), flags(4, 1), 0), (W(4, 6), flags(4, 6), 3.0)],
    "copy.default": [(W(4, 6), W(4, 6)), (W(4, 6), W(6))],
    "full.default": [((4, 6), 2.0)],
    "zeros.default": [((4, 6),)],
    "ones.default": [((4, 6),)],
    "new_zeros.default": [(W(3), (4, 6))],
    "new_ones.default": [(W(3), (4, 6))],
    "new_full.default": [(W(3), (4, 6), 2.0)],
    "scalar_tensor.default": [(2.0,)],
    "full_like.default": [(W(4, 6), 2.0)],
    "zeros_like.default": [(W(4, 6),)],
    "ones_like.default": [(W(4, 6),)],
    "tril.default": [(W(4, 3, 3),)],
    "triu.default": [(W(4, 3, 3),)],
    "add.Tensor": [(W(4, 6), W(6)), (W(4, 6), W(4, 1)), (W(4, 6), 2)],
    "sub.Tensor": [(W(4, 6), W(4, 6))],
    "mul.Tensor": [(W(4, 6), W(4, 1)), (W(4, 6), W())],
    "div.Tensor": [(N(4, 6), N(4, 1)), (N(4, 6), 3.0)],
    "_to_copy.default": [(W(4, 6),)],
    "gelu_backward.default": [(N(4, 6), N(4, 6))],
    "prelu.default": [(W(2, 6, 4), W(6))],
    "bitwise_and.Tensor": [(flags(4, 6), flags(6))],
    "bitwise_or.Tensor": [(flags(4, 6), flags(6))],
    "bitwise_xor.Tensor": [(flags(4, 6), flags(6))],
    "bitwise_not.default": [(flags(4, 6),)],
    "bitwise_left_shift.Tensor": [(labels(4, 4, 6), labels(4, 6))],
    "bitwise_right_shift.Tensor": [(labels(4, 4, 6), labels(4, 6))],
    "log_sigmoid_backward.default": [(N(4, 6), N(4, 6), N(4, 6))],
    "logit.default": [(N(4, 6), 0.1)],
    "hardtanh_backward.default": [(N(4, 6), N(4, 6), -1, 1)],
}  # fmt: skip
UNDRAWN = {
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted",
    "contiguous", "relu_backward", "softmax", "log_softmax", "_native_batch_norm_legit",
    "_scaled_dot_product_flash_attention_for_cpu_backward", "conj_physical", "real", "imag",
}  # fmt: skip
"""Without contents, of other names in other releases, or tried as parts of whole programs."""

NUMBERS = {
    "alpha": 1, "value": 0.7, "weight": 0.25, "exponent": 3, "other": 1.7, "threshold": 0.1, "beta": 2.0,
    "negative_slope": 0.01, "min": -0.5, "max": 0.6, "min_val": -0.5, "max_val": 0.6, "scale": 1.0,
    "input_scale": 1.0, "is_result": False, "self_is_result": False, "lambd": 1.3,
}  # fmt: skip


def drawn(packet):
    """A call of an element-wise operator, from its schema; None where it has no fitting overload."""
    group = getattr(torch.ops.aten, packet, None)
    for overload in () if group is None else ("default", "Tensor", "Scalar", "Tensor_Scalar"):
        if overload not in group.overloads():
            continue
        schema = getattr(group, overload)._schema
        needed = [a for a in schema.arguments if not a.has_default_value() and not a.kwarg_only]
        args = tuple(N(4, 6) if "Tensor" in str(a.type) else NUMBERS.get(a.name) for a in needed)
        if None not in args:
            return f"{packet}.{overload}", args
    return None


def least(name, args):
    """A call without the last arguments, where all that is left out has a default; None where it is none."""
    given = operator_of(f"aten.{name}")._schema.arguments[: len(args)]
    needed = max((at for at, one in enumerate(given, 1) if not one.has_default_value()), default=0)
    try:
        program(name, args[:needed])
    except RuntimeError:
        return None
    return args[:needed] if needed < len(args) else None


def cases():
    named = {name.split(".")[0] for name in CALLS}
    for name, calls in CALLS.items():
        for index, args in enumerate(calls):
            yield pytest.param(name, args, id=f"{name}-{index}")
        for args in filter(None, (least(name, args) for args in calls[:1])):
            yield pytest.param(name, args, id=f"{name}-least")
    for packet in sorted(set(TABLE) - named - UNDRAWN):
        found = drawn(packet)
        if found is not None:
            yield pytest.param(*found, id=found[0])


def type_of(x):
    if not isinstance(x, torch.Tensor):
        return ScalarType("float")
    return TensorType(tuple(x.shape), str(x.dtype).removeprefix("torch."), "cpu", tuple(x.stride()))


def program(name, args):
    """A graph of one call, and the values that it reads and makes."""
    values = {}
    inputs = []

    def given(arg):
        if isinstance(arg, tuple):
            return tuple(given(item) for item in arg)
        if not isinstance(arg, torch.Tensor):
            return arg
        ident = len(inputs)
        inputs.append(Input(ident, f"x{ident}", "batch", type_of(arg)))
        values[Value(ident)] = arg
        return Value(ident)

    stored = tuple(given(arg) for arg in args)
    node = Node(100, "node", Op(f"aten.{name}"), stored, (), (), ())
    made = call(node, values)
    node = Node(100, "node", node.op, stored, (), tuple(map(type_of, made)), (None,) * len(made))
    values |= dict(zip(node.outputs, made, strict=True))
    return Graph(tuple(inputs), (node,), ()), node, values


def pieces(length):
    """All of an axis, and factors of it."""
    yield Factor(0, 1, length, 1)
    for size in range(2, length):
        if length % size == 0:
            yield Factor(0, length // size, size, 1)
            yield Factor(0, 1, size, length // size)


def states_along(node, links, axis, piece):
    """States of operands and outputs when a node is split along a factor of an axis."""
    states = dict.fromkeys(node.inputs)
    states |= {node.inputs[slot.index]: slot.factor.within(piece) for slot in axis.operands}
    wanted = {node.outputs[slot.index]: slot.factor.within(piece) for slot in axis.outputs}
    made = transfer(node, links, states, wanted)
    return states | dict(zip(node.outputs, made, strict=True))


def agree(found, whole, name):
    if not isinstance(whole, torch.Tensor) or whole.numel() == 0:
        return
    assert found.dtype == whole.dtype, name
    if whole.is_floating_point():
        torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12, equal_nan=True)
    else:
        assert torch.equal(found, whole), name


@pytest.mark.parametrize(("name", "args"), list(cases()))
def test_parts_make_the_whole(name, args):
    graph, node, values = program(name, args)
    links = links_of(graph, node)
    for axis in links.axes:
        length = next(slot.factor.length for slot in (*axis.operands, *axis.outputs))
        if links.added and not axis.outputs:
            continue  # an operand that is added once: tried without it
        if axis.has_halo or axis.counted or node.op.packet in INDICES:
            continue  # neighbours share rows, or a part counts from its own: tried as regions
        for piece in pieces(length):
            if axis.carry is not None and piece.outer > 1:
                continue  # its parts do not follow one another
            states = states_along(node, links, axis, piece)
            for parts in sorted({2, 3, piece.length}):
                if parts <= piece.length:
                    found = in_parts(graph, [node], states, piece.length, values, parts)
                    for value, got in found.items():
                        agree(got, values[value], name)


@pytest.mark.parametrize(("name", "args"), list(cases()))
def test_sums_pass_where_the_table_says_linear(name, args):
    graph, node, values = program(name, args)
    for group in links_of(graph, node).linear:
        held = [node.inputs[index] for index in sorted(group)]
        if len(set(held)) < len(held) or not all(values[v].is_floating_point() for v in held):
            continue
        shares = {value: torch.randint(-3, 4, values[value].shape).to(FLOAT) for value in held}
        rest = {value: values[value] - share for value, share in shares.items()}
        one, two = call(node, values | shares), call(node, values | rest)
        for first, second, value in zip(one, two, node.outputs, strict=True):
            if first.numel():
                torch.testing.assert_close(first + second, values[value], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("name", "args"), list(cases()))
def test_operators_that_read_strides_do(name, args):
    if not reads_strides(f"aten.{name}"):
        return

    def gapped(arg):
        if isinstance(arg, tuple):
            return tuple(map(gapped, arg))
        if not isinstance(arg, torch.Tensor) or not arg.dim():
            return arg
        room = torch.empty((*arg.shape[:-1], arg.shape[-1] + 3), dtype=arg.dtype)
        return room[..., 1 : 1 + arg.shape[-1]].copy_(arg)

    _, node, values = program(name, args)
    _, again, spread = program(name, tuple(map(gapped, args)))
    for one, other in zip(node.outputs, again.outputs, strict=True):
        agree(spread[other], values[one], name)


def test_every_line_is_tried():
    tried = {case.values[0].split(".")[0] for case in cases()}
    assert set(TABLE) - tried - UNDRAWN == set()
    assert all(hasattr(torch.ops.aten, name.split(".")[0]) for name in CALLS)


@pytest.mark.parametrize(
    ("name", "args", "length"),
    [
        ("mean.dim", (N(4, 6), (1,)), 6),
        ("_softmax.default", (N(4, 6), 1, False), 6),
        ("sort.default", (N(4, 6), 1), 6),
        ("sort.default", (N(4, 6),), 6),
        ("topk.default", (N(4, 6), 3), 6),
        ("native_batch_norm.default", (N(4, 6, 3), N(6), None, None, None, True, 0.1, 1e-5), 4),
        ("nll_loss_forward.default", (N(6, 4), labels(4, 6), None, 1, -100), 6),
        ("mse_loss.default", (N(4, 6), N(4, 6), 1), 4),
    ],
)
def test_what_couples_the_parts_has_no_axis(name, args, length):
    graph, node, _ = program(name, args)
    axes = links_of(graph, node).axes
    assert length not in {slot.factor.length for axis in axes for slot in axis.operands}


def test_an_operand_that_is_added_once_closes_the_axis_of_the_sum():
    graph, node, _ = program("addmm.default", (W(8), W(6, 4), W(4, 8)))
    links = links_of(graph, node)
    inner = next(axis for axis in links.axes if not axis.outputs)
    with pytest.raises(Exception, match="adds a whole operand to a sum over the parts"):
        states_along(node, links, inner, Factor(0, 1, 4, 1))


def test_slots_are_whole_dimensions_of_their_operands():
    for name, args in (case.values for case in cases()):
        graph, node, _ = program(name, args)
        own = call_of(node, tuple(graph.type(value) for value in node.inputs))
        for axis in links_of(graph, node).axes:
            for slots, shape in ((axis.operands, own.shape), (axis.outputs, own.out)):
                for slot in slots:
                    assert isinstance(slot, Slot)
                    factor = slot.factor
                    total = factor.outer * factor.length * factor.inner
                    assert shape(slot.index)[factor.dim] == total, name


def test_operators_are_known_to_torch():
    assert operator_of("aten.mm.default") is torch.ops.aten.mm.default


@pytest.mark.parametrize(("kwargs", "length"), [({}, 6), ({"dim": 0}, 4), ({"dim": -2, "stable": True}, 4)])
def test_a_stable_sort_is_not_split_along_what_it_sorts(kwargs, length):
    graph, node, _ = program("sort.default", (N(4, 6),))
    named = replace(node, op=Op("aten.sort.stable"), kwargs=tuple(kwargs.items()))
    found = links_of(replace(graph, nodes=(named,)), named).axes
    assert {slot.factor.length for axis in found for slot in axis.operands} == {4, 6} - {length}
