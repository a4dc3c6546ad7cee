"""Every optimizer of torch: captured bit for bit, or refused by name with an offer."""

import pytest
import torch
from tests.torch.capture_support import equal_steps
from torch import nn, optim

import peakfold
from peakfold.bridge.capture import capture_step
from peakfold.bridge.runtime.codec import encode
from peakfold.bridge.runtime.saved_guards import saved_guards
from peakfold.errors import CaptureError


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def squared(model, x):
    return model(x).square().mean()


def images():
    return (torch.randn(5, 6, generator=torch.Generator().manual_seed(1)),)


EXACT = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd of a tensor": lambda p: optim.SGD(p, lr=torch.tensor(0.1)),
    "sgd foreach": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adam": lambda p: optim.Adam(p, amsgrad=True, maximize=True),
    "adamw": lambda p: optim.AdamW(p),
    "adamw of a tensor": lambda p: optim.AdamW(p, lr=torch.tensor(0.01)),
    "adamw foreach": lambda p: optim.AdamW(p, foreach=True),
    "nadam": lambda p: optim.NAdam(p, lr=0.01, weight_decay=0.1),
    "nadam foreach": lambda p: optim.NAdam(p, foreach=True),
    "adagrad": lambda p: optim.Adagrad(p, lr_decay=0.1, initial_accumulator_value=0.1, weight_decay=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01),
    "rmsprop centered": lambda p: optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9),
    "adamax": lambda p: optim.Adamax(p, weight_decay=0.1),
    "adadelta": lambda p: optim.Adadelta(p),
}
REFUSED = {
    "RAdam": (lambda p: optim.RAdam(p), "decides control flow by a number that is read from a tensor"),
    "ASGD": (lambda p: optim.ASGD(p), "state 'eta' is made from the first gradients"),
    "Rprop": (lambda p: optim.Rprop(p), "puts a number of param_groups into a tensor"),
    "LBFGS": (lambda p: optim.LBFGS(p), "closure"),
    "Adafactor": (
        lambda p: optim.Adafactor(p),
        "decides control flow by a number that is read from a tensor",
    ),
    "SparseAdam": (lambda p: optim.SparseAdam(p), "does not support dense gradients"),
    "AdamW": (lambda p: optim.AdamW(p, fused=True), "fused=True"),
    "Adam": (lambda p: optim.Adam(p, capturable=True), "capturable=True"),
    "SGD": (lambda p: optim.SGD(p, differentiable=True), "differentiable=True"),
}


@pytest.mark.parametrize("name", EXACT)
def test_captured_exactly(name):
    equal_steps(capture_step, net(), squared, lambda m: EXACT[name](list(m.parameters())), images(), steps=6)


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="this torch has no Muon")
def test_muon_of_the_matrices():
    def make(model):
        return optim.Muon([p for p in model.parameters() if p.dim() == 2])

    equal_steps(capture_step, net(), squared, make, images())


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_with_an_offer(name):
    make, reason = REFUSED[name]
    model = net()
    with pytest.raises(CaptureError) as caught:
        capture_step(model, squared, make(list(model.parameters())), images())
    assert caught.value.what == f"the optimizer {name} cannot be captured"
    assert reason in caught.value.got
    assert caught.value.hint == (
        "pass optimizer=None: the step leaves gradients, and the optimizer runs by itself"
    )


def test_a_refused_optimizer_runs_beside_gradients_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))
    model, twin = net(), net()
    ours, theirs = optim.RAdam(model.parameters(), lr=0.01), optim.RAdam(twin.parameters(), lr=0.01)
    step = peakfold.optimize_step(model, squared, None, images(), iterations=10, time_budget=1)
    for _ in range(8):
        loss, expected = step(*images()), squared(twin, *images())
        expected.backward()
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(loss, expected)
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_rate_that_is_a_tensor_is_an_input(tmp_path, monkeypatch):
    """A scheduler fills it; a number in its place is another program."""
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))
    model, twin = net(), net()
    ours, theirs = (optim.AdamW(m.parameters(), lr=torch.tensor(0.1)) for m in (model, twin))
    step = peakfold.optimize_step(model, squared, ours, images(), iterations=10, time_budget=1)
    schedulers = [optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (ours, theirs)]
    for index in range(4):
        if index == 3:
            for optimizer in (ours, theirs):
                optimizer.param_groups[0]["lr"] = 0.3
        step(*images())
        squared(twin, *images()).backward()
        theirs.step()
        theirs.zero_grad()
        for scheduler in schedulers[: 2 if index < 3 else 0]:
            scheduler.step()
        for left, right in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(left, right)
    assert len(step._programs) == 2


CLASSES = sorted(
    (
        kind
        for kind in vars(optim).values()
        if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer
    ),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_groups_of_every_optimizer_are_guarded_and_kept(kind):
    """Not every default of a class is an entry of its groups."""
    model = nn.Linear(6, 6, bias=False)
    optimizer = kind(model.parameters())
    guards = saved_guards(model, optimizer, images())
    assert encode(guards, [])
    assert guards.check_model(model, optimizer) is None


def test_muon_through_the_whole_pipeline():
    torch.manual_seed(0)
    model = nn.Linear(6, 6, bias=False)
    optimizer = optim.Muon(model.parameters(), lr=0.1)
    step = peakfold.optimize_step(model, squared, optimizer, images(), iterations=5)
    assert step.report.equal.ok
