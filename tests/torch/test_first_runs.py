"""A batch that fake tensors take and a kernel does not: said so, and nothing is changed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import peakfold
from peakfold.errors import CaptureError


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))


def squared(model, x):
    return model(x).square().mean()


def classified(model, x, y):
    return F.cross_entropy(model(x), y)


X, IMAGE, LABELS = torch.randn(4, 6), torch.randn(2, 3, 5, 5), torch.tensor([0, 1, 2, 0])
CASES = {
    "a product": (lambda: nn.Linear(6, 3), squared, (X,), (X.double(),)),
    "a convolution": (lambda: nn.Conv2d(3, 2, 3, bias=False), squared, (IMAGE,), (IMAGE.double(),)),
    "a norm": (lambda: nn.LayerNorm(6), squared, (X,), (X.double(),)),
    "labels": (lambda: nn.Linear(6, 3), classified, (X, LABELS), (X, LABELS.int())),
}


def snapshot(model, optimizer):
    tensors = [*model.parameters(), *model.buffers()]
    state = {k: v for held in optimizer.state.values() for k, v in held.items()}
    return [t.detach().clone() for t in tensors], state, [p.grad for p in model.parameters()]


@pytest.mark.parametrize("name", CASES)
def test_a_dtype_that_no_kernel_takes(name):
    make, loss_fn, good, bad = CASES[name]
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(RuntimeError):
        loss_fn(model, *bad)
    step = peakfold.optimize_step(model, loss_fn, optimizer, good, iterations=1, verify=False)
    before, _, _ = snapshot(model, optimizer)
    for _ in range(2):
        with pytest.raises(CaptureError) as caught:
            step(*bad)
        assert str(caught.value).startswith(
            "step: the program of this call fails when it is run for the first time\n  at: "
        )
        assert "\n  got: RuntimeError: " in str(caught.value) or "NotImplementedError: " in str(caught.value)
        after, state, gradients = snapshot(model, optimizer)
        assert all(map(torch.equal, before, after))
        assert state == {}
        assert gradients == [None] * len(gradients)
    assert torch.isfinite(step(*good))


def test_a_program_that_has_run_raises_what_the_operator_does():
    """A label out of range: eager's own error, and nothing is left of the step."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = peakfold.optimize_step(model, classified, optimizer, (X, LABELS), iterations=1, verify=False)
    step(X, LABELS)
    with pytest.raises(IndexError, match="out of bounds"):
        step(X, LABELS + 7)
    assert torch.isfinite(step(X, LABELS))
