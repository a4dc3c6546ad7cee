"""Numbers of the roofline, worked out by hand."""

import hashlib
from functools import partial
from importlib.resources import files

import pytest

from peakfold.cost.costs import Link
from peakfold.cost.roofline import devices, estimate
from peakfold.errors import UsageError
from peakfold.ir.graph import Graph, Input, Node, Op, Value
from peakfold.ir.types import tensor
from peakfold.plan.fission.program import with_loops

approx = partial(pytest.approx, rel=1e-12)


def one(name, given, args, *types):
    inputs = tuple(Input(i, f"x{i}", "batch", kind) for i, kind in enumerate(given))
    node = Node(99, "node", Op(name), args, (), types, (None,) * len(types))
    return Graph(inputs, (node,), ())


def seconds(graph, device, precision=None):
    return estimate(graph, device, precision).seconds[99]


MM = one("aten.mm.default", (tensor(1024, 512), tensor(512, 2048)), (Value(0), Value(1)), tensor(1024, 2048))


def test_a_product_is_bound_by_arithmetic_that_is_less_efficient_when_small():
    flops = 2 * 1024 * 2048 * 512
    expected = 5e-6 + flops / (35.6e12 * 0.85 * flops / (flops + 4.0e8))
    assert seconds(MM, "rtx3090") == approx(expected)
    assert seconds(MM, "rtx3090", "fp32") == approx(5e-6 + (flops + 2.0e8) / (35.6e12 * 0.80), rel=1e-12)
    assert seconds(MM, "a100") == approx(5e-6 + (flops + 1.5e9) / (156e12 * 0.80))
    assert seconds(MM, "h200") == approx(5e-6 + (flops + 6.0e8) / (67e12 * 0.85))


def test_a_product_of_halves_runs_at_the_rate_of_halves():
    half = tuple(tensor(*shape, dtype="bfloat16") for shape in ((64, 64), (64, 64), (64, 64)))
    graph = one("aten.mm.default", half[:2], (Value(0), Value(1)), half[2])
    expected = 5e-6 + (2 * 64**3 + 8.0e8) / (71.0e12 * 0.85)
    assert seconds(graph, "rtx3090") == approx(expected)


def test_a_pointwise_kernel_is_bound_by_bytes():
    kind = tensor(1 << 22)
    graph = one("aten.add.Tensor", (kind, kind), (Value(0), Value(1)), kind)
    assert seconds(graph, "rtx3090") == approx(5e-6 + 3 * 4 * 2**22 / (936e9 * 0.85))


def test_a_part_that_is_written_at_the_border_of_a_region_costs_the_part():
    whole, part = tensor(1 << 22), tensor(1 << 20)
    graph = one(
        "aten.slice_scatter.default", (whole, part), (Value(0), Value(1), 0, Value(2), Value(3)), whole
    )
    alone = 5e-6 + 2 * 4 * 2**20 / (936e9 * 0.85)
    assert seconds(graph, "rtx3090") == approx(alone)
    assert with_loops(graph, estimate(graph, "rtx3090"), {}).seconds[99] == approx(alone)


def test_an_expanded_operand_is_read_once():
    graph = one(
        "aten.add.Tensor",
        (tensor(1024, 64), tensor(1024, 64, strides=(0, 1))),
        (Value(0), Value(1)),
        tensor(1024, 64),
    )
    nbytes = 4 * (1024 * 64 + 64 + 1024 * 64)
    assert seconds(graph, "a100") == approx(5e-6 + nbytes / (2039e9 * 0.85))


CONV_ARGS = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)


def test_a_convolution():
    x, w = tensor(8, 64, 32, 32), tensor(128, 64, 3, 3)
    graph = one(
        "aten.convolution.default", (x, w), (Value(0), Value(1), None, *CONV_ARGS), tensor(8, 128, 32, 32)
    )
    flops = 2 * 8 * 128 * 32 * 32 * 64 * 9
    assert seconds(graph, "rtx3090") == approx(5e-6 + (flops + 4.0e8) / (35.6e12 * 0.85))


def test_the_backward_of_a_convolution_is_three_kernels():
    grad, x, w, bias = tensor(8, 128, 32, 32), tensor(8, 64, 32, 32), tensor(128, 64, 3, 3), tensor(128)
    args = (Value(0), Value(1), Value(2), (128,), *CONV_ARGS, (True, True, True))
    graph = one("aten.convolution_backward.default", (grad, x, w), args, x, w, bias)
    product = 5e-6 + (2 * 8 * 128 * 32 * 32 * 64 * 9 + 4.0e8) / (35.6e12 * 0.85)
    add_up = 5e-6 + (grad.nbytes + 512) / (936e9 * 0.85)
    assert seconds(graph, "rtx3090") == approx(2 * product + add_up)


def test_the_backward_makes_only_what_is_wanted():
    grad, x, w, bias = tensor(8, 128, 32, 32), tensor(8, 64, 32, 32), tensor(128, 64, 3, 3), tensor(128)
    args = (Value(0), Value(1), Value(2), (128,), *CONV_ARGS, (False, True, True))
    graph = one("aten.convolution_backward.default", (grad, x, w), args, w, bias)
    product = 5e-6 + (2 * 8 * 128 * 32 * 32 * 64 * 9 + 4.0e8) / (35.6e12 * 0.85)
    assert seconds(graph, "rtx3090") == approx(
        product + 5e-6 + (grad.nbytes + 512) / (936e9 * 0.85), rel=1e-12
    )


def test_a_transposed_convolution():
    x, w = tensor(2, 512, 16, 16), tensor(512, 256, 2, 2)
    args = (Value(0), Value(1), None, (2, 2), (0, 0), (1, 1), True, (0, 0), 1)
    graph = one("aten.convolution.default", (x, w), args, tensor(2, 256, 32, 32))
    flops = 2 * (2 * 512 * 16 * 16) * (256 * 4)
    assert seconds(graph, "rtx3090") == approx(5e-6 + (flops + 4.0e8) / (35.6e12 * 0.85))


def test_attention_forward_and_backward():
    q = tensor(2, 8, 128, 64)
    lse = tensor(2, 8, 128)
    flops = 4 * 2 * 8 * 128 * 128 * 64
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    forward = one(f"{name}.default", (q, q, q), (Value(0), Value(1), Value(2), 0.0, True), q, lse)
    assert seconds(forward, "a100") == approx(5e-6 + (flops + 1.5e9) / (156e12 * 0.80))
    args = (*(Value(i) for i in range(6)), 0.0, True)
    backward = one(f"{name}_backward.default", (q, q, q, q, q, lse), args, q, q, q)
    assert seconds(backward, "a100") == approx(5e-6 + (2.5 * flops + 1.5e9) / (156e12 * 0.80), rel=1e-12)


def test_addmm_and_baddbmm_reduce_the_second_argument():
    addmm = one(
        "aten.addmm.default",
        (tensor(16), tensor(32, 64), tensor(64, 16)),
        (Value(0), Value(1), Value(2)),
        tensor(32, 16),
    )
    assert seconds(addmm, "rtx3090") == approx(5e-6 + (2 * 32 * 16 * 64 + 4e8) / (35.6e12 * 0.85))
    baddbmm = one(
        "aten.baddbmm.default",
        (tensor(4, 32, 16), tensor(4, 32, 64), tensor(4, 64, 16)),
        (Value(0), Value(1), Value(2)),
        tensor(4, 32, 16),
    )
    assert seconds(baddbmm, "rtx3090") == approx(5e-6 + (2 * 4 * 32 * 16 * 64 + 4e8) / (35.6e12 * 0.85))


def test_memory_that_is_only_taken_costs_nothing():
    graph = one("aten.new_empty_strided.default", (tensor(8),), (Value(0), (8,), (1,)), tensor(8))
    assert seconds(graph, "a100") == 0.0


def test_transfers_are_those_of_the_device():
    assert estimate(MM, "rtx3090").link == Link(13e9, 10e-6, 936e9 * 0.85 / 2)
    assert estimate(MM, "rtx3090").source == "sim:rtx3090 tf32"


def test_the_devices_are_the_published_ones():
    text = files("peakfold.cost").joinpath("devices.toml").read_bytes()
    assert (
        hashlib.sha256(text).hexdigest() == "d20488b899d670e96f73c9551209bc355d35e3e0774a955f9827b0d28626fddc"
    )
    assert devices()["rtx3090"].memory == 24 * 2**30


def test_a_device_that_is_not_described_is_refused():
    with pytest.raises(UsageError) as caught:
        estimate(MM, "rtx4090")
    assert str(caught.value) == (
        "estimate: there is no description of the device\n"
        "  expected: a100, h200, rtx3090\n"
        "  got: 'rtx4090'\n"
        "  next: choose one of these, e.g. --device sim:rtx3090"
    )


def test_a_precision_that_the_device_lacks_is_refused():
    with pytest.raises(UsageError, match="the device h200 has no such precision"):
        estimate(MM, "h200", "tf32")
