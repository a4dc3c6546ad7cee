"""Arguments of the Python calls that are something else: refused with what and why."""

import numpy
import pytest
import torch
from torch import nn

import peakfold
from peakfold.errors import CaptureError, PeakfoldError, UsageError

X = torch.ones(4, 3)


def squared(model, x):
    return model(x).square().mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def refused(model, loss_fn, optimizer, batch=(X,), **options):
    with pytest.raises(PeakfoldError) as caught:
        peakfold.optimize_step(model, loss_fn, optimizer, batch, iterations=1, **options)
    return caught.value


@pytest.mark.parametrize(
    ("model", "loss_fn", "optimizer", "message"),
    [
        (
            "bert",
            squared,
            None,
            "the model is something else\n  expected: a torch.nn.Module\n  got: str 'bert'",
        ),
        (nn.Linear(3, 1), "mse", None, "the loss_fn is something else"),
        (nn.Linear(3, 1), squared, "adam", "the optimizer is something else"),
        (nn.Linear(3, 1), squared, torch.optim.SGD, "expected: a torch.optim.Optimizer, or None"),
    ],
)
def test_what_is_no_model_loss_function_or_optimizer(model, loss_fn, optimizer, message):
    error = refused(model, loss_fn, optimizer)
    assert isinstance(error, UsageError)
    assert message in str(error)


@pytest.mark.parametrize("call", [peakfold.estimate, peakfold.largest_batch])
def test_the_other_calls_refuse_the_same(call):
    with pytest.raises(UsageError, match="the model is something else"):
        call("bert", squared, None, (X,))
    with pytest.raises(UsageError, match="the model is something else"):
        peakfold.optimize_inference("bert", (X,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": "x"}, "the seed is no whole number\n  expected: an int\n  got: 'x'"),
        ({"seed": True}, "the seed is no whole number"),
        ({"time_budget": "1m"}, "the time budget is no number\n  expected: seconds\n  got: '1m'"),
        ({"time_budget": float("nan")}, "the time budget is negative"),
        ({"rng": "dice"}, "the random numbers cannot be had in this way"),
    ],
)
def test_numbers_and_words_that_are_something_else(options, message):
    model = nn.Linear(3, 1)
    error = refused(model, squared, sgd(model), **options)
    assert isinstance(error, UsageError)
    assert message in str(error)


def test_an_iteration_count_that_is_no_whole_number():
    model = nn.Linear(3, 1)
    with pytest.raises(UsageError, match="the iteration count is no whole number"):
        peakfold.optimize_step(model, squared, None, (X,), iterations=1.5)


def test_an_array_in_the_batch():
    def loss_fn(model, x, scale):
        return (model(x) * torch.from_numpy(scale)).mean()

    error = refused(nn.Linear(3, 1), loss_fn, None, (X, numpy.ones((4, 1), numpy.float32)))
    assert isinstance(error, CaptureError)
    assert "the batch holds an array that is no tensor\n  at: batch.1" in str(error)
    assert "next: pass torch.from_numpy(array)" in str(error)


def test_a_lazy_module_that_has_not_run():
    error = refused(nn.Sequential(nn.LazyLinear(3)), squared, None)
    assert isinstance(error, CaptureError)
    assert "a lazy module has not been run yet\n  at: 0.weight" in str(error)


def test_a_step_that_fails_in_eager_alone():
    """Fake tensors take operands of two types where the kernel does not."""
    model = nn.Linear(3, 1)
    error = refused(model, squared, sgd(model), (X.double(),))
    assert isinstance(error, CaptureError)
    assert "the original fails when it is run\n  got: RuntimeError: mat1 and mat2" in str(error)


def test_detecting_anomalies_reads_no_values_of_the_capture():
    model = nn.Linear(3, 1)
    with torch.autograd.detect_anomaly(check_nan=True):
        step = peakfold.optimize_step(model, squared, sgd(model), (X,), iterations=1)
    assert step.report.equal.bit_equal
