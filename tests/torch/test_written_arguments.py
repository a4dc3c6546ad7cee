"""Operators that write into an argument and return something else."""

import pytest
import torch
from tests.torch.capture_support import equal_steps
from torch import nn

from peakfold.bridge.capture import capture_step
from peakfold.bridge.capture.functional import functional
from peakfold.errors import CaptureError


@torch.library.custom_op("peakfold_tests::count_and_double", mutates_args={"count"})
def count_and_double(count: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    count.add_(1)
    return x * 2


@count_and_double.register_fake
def _(count, x):
    return torch.empty_like(x)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def squared(model, x):
    return model(x).square().mean()


class Own(nn.Module):
    """Statistics that the operator itself updates."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))

    def forward(self, x):
        kept = (self.linear.bias, None, self.mean, self.variance, True, 0.1, 1e-5)
        return torch.ops.aten._native_batch_norm_legit.default(self.linear(x), *kept)[0]


def test_no_functional_form_writes():
    names = [name.split("::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    seen = 0
    for packet, overload in {(name.split(".")[0], (*name.split("."), "default")[1]) for _, name in names}:
        op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if op is None or not op._schema.is_mutable:
            continue
        pure = functional(op)
        seen += pure is not None
        assert pure is None or not pure._schema.is_mutable, op
    assert seen > 500


@pytest.mark.parametrize("inplace", [True, False])
def test_leaky_units_with_random_slopes(inplace):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.RReLU(inplace=inplace), nn.Linear(4, 4), nn.RReLU())
    equal_steps(capture_step, model, squared, momentum, (torch.randn(5, 3),))


def test_statistics_that_an_operator_writes():
    torch.manual_seed(0)
    equal_steps(capture_step, Own(), squared, momentum, (torch.randn(5, 3),))


def test_a_users_operator_that_writes_is_refused():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            return self.linear(count_and_double(self.count, x))

    model = Counting()
    with pytest.raises(CaptureError, match=r"count_and_double\.default has no functional form"):
        capture_step(model, squared, momentum(model), (torch.randn(5, 3),))
