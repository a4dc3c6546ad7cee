"""Every optimizer of torch: captured bit for bit, or refused by name with an offer."""

import copy

import pytest
import torch
from tests.torch.capture_support import assert_same_state, equal_steps
from torch import nn, optim

import peakfold
from peakfold.bridge.capture import capture_step
from peakfold.bridge.runtime.codec import encode
from peakfold.bridge.runtime.saved_guards import saved_guards
from peakfold.errors import CaptureError, PlanError


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def squared(model, x):
    return model(x).square().mean()


def images():
    return (torch.randn(5, 6, generator=torch.Generator().manual_seed(1)),)


class Extremes(optim.Optimizer):
    """Takes the larger, the smaller and the size of numbers that change from step to step."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "least": -0.2})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                norm = param.norm().item()
                rate = max(group["lr"], 0.04, norm / 30) * abs(group["least"])
                param.sub_(param.grad.pow_(2), alpha=min(rate, abs(norm), max(norm, 1.0) * 0.5))


class Counting(optim.Optimizer):
    """Changes a number of its groups, or of its own, in each step."""

    def __init__(self, params, own=False):
        super().__init__(params, {"lr": 0.1})
        self.own, self.count = own, 0

    @torch.no_grad()
    def step(self):
        if self.own:
            self.count += 1
        else:
            self.param_groups[0]["lr"] *= 0.5
        for param in self.param_groups[0]["params"]:
            param.sub_(param.grad, alpha=self.param_groups[0]["lr"])


class Conditional(optim.Optimizer):
    """Decides by a value of a parameter what it does."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for param in self.param_groups[0]["params"]:
            if param.norm().item() > 1:
                param.sub_(param.grad, alpha=self.param_groups[0]["lr"])


EXACT = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd of a tensor": lambda p: optim.SGD(p, lr=torch.tensor(0.1)),
    "sgd foreach": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adam": lambda p: optim.Adam(p, amsgrad=True, maximize=True),
    "adamw": lambda p: optim.AdamW(p),
    "adamw of a tensor": lambda p: optim.AdamW(p, lr=torch.tensor(0.01)),
    "adamw whose betas are tensors": lambda p: optim.AdamW(
        p, betas=(torch.tensor(0.8), torch.tensor(0.95)), foreach=False
    ),
    "adamw foreach": lambda p: optim.AdamW(p, foreach=True),
    "nadam": lambda p: optim.NAdam(p, lr=0.01, weight_decay=0.1),
    "nadam foreach": lambda p: optim.NAdam(p, foreach=True),
    "adagrad": lambda p: optim.Adagrad(p, lr_decay=0.1, initial_accumulator_value=0.1, weight_decay=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01),
    "rmsprop centered": lambda p: optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9),
    "adamax": lambda p: optim.Adamax(p, weight_decay=0.1),
    "adadelta": lambda p: optim.Adadelta(p),
    "radam": lambda p: optim.RAdam(p, lr=0.01),
    "radam foreach": lambda p: optim.RAdam(
        p, foreach=True, weight_decay=0.1, decoupled_weight_decay=True, maximize=True
    ),
    "asgd": lambda p: optim.ASGD(p),
    "asgd that averages": lambda p: optim.ASGD(p, t0=3, lambd=0.1, weight_decay=0.1),
    "asgd foreach": lambda p: optim.ASGD(p, t0=3, foreach=True),
    "rprop": lambda p: optim.Rprop(p),
    "rprop foreach": lambda p: optim.Rprop(p, lr=0.1, etas=(0.4, 1.3), foreach=True),
    "adafactor": lambda p: optim.Adafactor(p, weight_decay=0.1),
    "adafactor foreach": lambda p: optim.Adafactor(p, foreach=True),
    "adafactor with its epsilons": lambda p: optim.Adafactor(p, lr=0.5, eps=(1e-7, 1e-2), d=1.01),
}
REFUSED = {
    "LBFGS": (lambda p: optim.LBFGS(p), "closure"),
    "Conditional": (
        lambda p: Conditional(p),
        "decides control flow by a number that is read from a tensor",
    ),
    "Counting": (lambda p: Counting(p), "its step changes 'lr' of group 0"),
    "Counting of its own": (lambda p: Counting(p, own=True), "its step changes its attribute 'count'"),
    "SparseAdam": (lambda p: optim.SparseAdam(p), "does not support dense gradients"),
    "AdamW": (lambda p: optim.AdamW(p, fused=True), "fused=True"),
    "Adam": (lambda p: optim.Adam(p, capturable=True), "capturable=True"),
    "SGD": (lambda p: optim.SGD(p, differentiable=True), "differentiable=True"),
}


@pytest.mark.parametrize("name", EXACT)
def test_captured_exactly(name):
    equal_steps(capture_step, net(), squared, lambda m: EXACT[name](list(m.parameters())), images(), steps=8)


def test_the_larger_of_two_numbers_is_taken_anew_in_each_step():
    def halve(optimizer):
        optimizer.param_groups[0]["lr"] *= 0.5

    first = []

    def capture(*given):
        first.append(capture_step(*given))
        return first[-1]

    equal_steps(capture, net(), squared, lambda m: Extremes(m.parameters()), images(), 6, between=halve)
    assert len(first) == 1


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
    assert caught.value.what == f"the optimizer {name.split()[0]} cannot be captured"
    assert reason in caught.value.got
    assert caught.value.hint == (
        "pass optimizer=None: the step leaves gradients, and the optimizer runs by itself"
    )


def test_a_refused_optimizer_runs_beside_gradients_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))
    model, twin = net(), net()
    ours, theirs = (optim.Adam(m.parameters(), lr=0.01, fused=True) for m in (model, twin))
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


def test_a_step_count_that_changes_the_program_is_guarded(tmp_path, monkeypatch):
    """RAdam rectifies from its sixth step on: two programs, whichever state dict they meet."""
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))
    model, twin = net(), net()
    ours, theirs = (optim.RAdam(m.parameters(), lr=0.1) for m in (model, twin))
    for _ in range(4):  # the proof, and then the steps, cross over
        for one, optimizer in ((model, ours), (twin, theirs)):
            squared(one, *images()).backward()
            optimizer.step()
            optimizer.zero_grad()
    early = copy.deepcopy((model.state_dict(), ours.state_dict()))
    step = peakfold.optimize_step(model, squared, ours, images(), iterations=10, time_budget=1)
    assert step.report.equal.bit_equal
    step.save(tmp_path / "early")

    def steps(count):
        for _ in range(count):
            loss, expected = step(*images()), squared(twin, *images())
            expected.backward()
            theirs.step()
            theirs.zero_grad()
            assert torch.equal(loss, expected)
            assert_same_state(model, twin, ours, theirs)

    steps(3)
    assert len(step._programs) == 2
    with pytest.raises(PlanError) as caught:
        peakfold.load(tmp_path / "early", model, ours)
    assert "the optimizer's state 'step' has come to where" in caught.value.got
    for one, optimizer in ((model, ours), (twin, theirs)):
        one.load_state_dict(early[0])
        optimizer.load_state_dict(copy.deepcopy(early[1]))
    peakfold.load(tmp_path / "early", model, ours)
    steps(3)
    assert len(step._programs) == 2


def test_whole_numbers_in_a_tuple_are_guarded():
    """They are constants of the program, where a float is one of its inputs."""
    model = net()
    optimizer = optim.Rprop(model.parameters(), step_sizes=(1e-6, 50))
    captured = capture_step(model, squared, optimizer, images())
    portable = saved_guards(model, optimizer, images())
    optimizer.param_groups[0]["step_sizes"] = (1e-5, 50)
    assert captured.guards.check(model, optimizer, images()) is None
    assert portable.check_model(model, optimizer) is None
    optimizer.param_groups[0]["step_sizes"] = (1e-5, 40)
    assert "step_sizes of group 0" in captured.guards.check(model, optimizer, images())
    assert "flags in them, were changed" in portable.check_model(model, optimizer)


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


def test_a_tensor_in_a_tuple_that_becomes_a_number_is_seen():
    model, betas = net(), (torch.tensor(0.8), torch.tensor(0.95))
    optimizer = optim.AdamW(model.parameters(), betas=betas, foreach=False)
    guards = capture_step(model, squared, optimizer, images()).guards
    assert guards.check(model, optimizer, images()) is None
    optimizer.param_groups[0]["betas"] = (0.8, 0.95)
    assert "a tensor became a number" in guards.check(model, optimizer, images())


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
