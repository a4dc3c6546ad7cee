"""Fake results have the strides of the CPU kernels, for operands of many layouts."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from peakfold.bridge.capture.kernels import as_eager, elements_first

aten = torch.ops.aten
SHAPE = (2, 4, 4, 6)
LAYOUTS = [(0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 2, 3)]


def laid_out(order):
    torch.manual_seed(0)
    back = sorted(range(4), key=order.__getitem__)
    return torch.rand([SHAPE[dim] for dim in order]).permute(back)


def norm(a, b):
    return (a, None, None, torch.zeros(4), torch.ones(4), True, 0.1, 1e-5)


def norm_backward(a, b):
    ones = torch.ones(4)
    return (a, b, ones, ones, ones, ones, ones, True, 1e-5, [True, True, True])


def convolution(a, b):
    return (a, torch.ones(3, 4, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def layer_backward(a, b):
    mean = torch.zeros(2, 4, 4, 1)
    return (a, b, [6], mean, mean, torch.ones(6), torch.ones(6), [True, True, False])


CALLS = [
    (aten.mse_loss_backward.default, lambda a, b: (torch.ones(()), a, b, 1)),
    (aten.smooth_l1_loss_backward.default, lambda a, b: (torch.ones(()), a, b, 1, 1.0)),
    (aten.huber_loss_backward.default, lambda a, b: (torch.ones(()), a, b, 1, 1.0)),
    (aten.log_sigmoid_forward.default, lambda a, b: (a,)),
    (aten._log_softmax_backward_data.default, lambda a, b: (a, b, 1, torch.float32)),
    (aten.native_batch_norm.default, norm),
    (aten.native_batch_norm_backward.default, norm_backward),
    (aten.native_layer_norm_backward.default, layer_backward),
    (aten.hardswish_backward.default, lambda a, b: (a, b)),
    (aten.elu_backward.default, lambda a, b: (a, 1, 1, 1, False, b)),
    (aten.softplus_backward.default, lambda a, b: (a, b, 1, 20)),
    (aten.hardtanh_backward.default, lambda a, b: (a, b, -1, 1)),
    (aten.hardsigmoid_backward.default, lambda a, b: (a, b)),
    (aten.roll.default, lambda a, b: (a, [1], [1])),
    (aten.gelu_backward.default, lambda a, b: (a, b)),
    (aten.silu_backward.default, lambda a, b: (a, b)),
    (aten._softmax_backward_data.default, lambda a, b: (a, b, 1, torch.float32)),
    (aten.convolution.default, convolution),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "arguments"), CALLS, ids=[str(call[0]) for call in CALLS])
@pytest.mark.parametrize("layouts", itertools.product(LAYOUTS, LAYOUTS), ids=str)
def test_strides(operator, arguments, layouts):
    args = arguments(*map(laid_out, layouts))
    real = operator(*args)
    with FakeTensorMode() as mode:
        fakes = tuple(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
        fake = as_eager(operator, fakes, operator(*fakes))
    pairs = zip(real, fake, strict=True) if isinstance(real, tuple) else [(real, fake)]
    for ours, theirs in pairs:
        if ours is not None:
            assert (theirs.shape, theirs.stride()) == (ours.shape, ours.stride())


@pytest.mark.parametrize("reduction", [1, 2])
@pytest.mark.parametrize(
    "loss", [aten.mse_loss.default, aten.smooth_l1_loss.default, aten.soft_margin_loss.default]
)
def test_losses_in_two_operators(loss, reduction):
    torch.manual_seed(0)
    x, y = torch.randn(37, 101), torch.randn(37, 101)
    both = elements_first(loss, (x, y, reduction))
    assert torch.equal(both(x, y, reduction), loss(x, y, reduction))
    assert both(x, y, reduction).untyped_storage().nbytes() == 4
    assert loss(x, y, reduction).untyped_storage().nbytes() == 4 * x.numel()


@pytest.mark.parametrize("weight", [None, torch.full((101,), 0.5)])
def test_cross_entropy_of_two_classes_in_two_operators(weight):
    torch.manual_seed(0)
    args = (torch.rand(37, 101), torch.rand(37, 101), weight, 1)
    both = elements_first(aten.binary_cross_entropy.default, args)
    assert torch.equal(both(*args), aten.binary_cross_entropy.default(*args))
    assert elements_first(aten.binary_cross_entropy.default, (*args[:3], 0)) is None
