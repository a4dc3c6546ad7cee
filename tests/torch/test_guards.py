"""A captured program is replayed only where it is the user's; the reason is said in words."""

import gc
import sys
import types
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakfold.bridge.capture import capture_step

SCALE = 2.0
OPTIONS = {"power": 2}
torch.set_num_threads(1)


@dataclass
class Config:
    act: str = "relu"
    unread: int = 1


class Inner:
    def __init__(self):
        self.config = Config()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Dropout(0.1)
        self.config, self.sizes, self.deep = Config(), [1, 2], Inner()
        self.gain = 3.0

    def forward(self, x):
        h = self.drop(self.norm(self.fc(x))) * SCALE * self.gain * len(self.sizes)
        if self.deep.config.act == "tanh":
            h = h.tanh()
        return getattr(F, self.config.act)(h) ** OPTIONS["power"]


def make(factor=1.5, holder=None):
    holder = holder or types.SimpleNamespace(power=1)

    def loss(model, x, y, mode="mean"):
        return F.mse_loss(model(x), y, reduction=mode) * factor * holder.power

    return loss


@pytest.fixture
def program():
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    batch = (torch.zeros(4, 6), torch.zeros(4, 3), "mean")
    holder = types.SimpleNamespace(power=1)
    captured = capture_step(model, make(1.5, holder), optimizer, batch)
    assert captured.guards.check(model, optimizer, batch) is None
    return types.SimpleNamespace(
        model=model, optimizer=optimizer, batch=batch, guards=captured.guards, holder=holder
    )


def check(program, batch=None):
    return program.guards.check(program.model, program.optimizer, program.batch if batch is None else batch)


def set_gain(program):
    program.model.gain = 4.0


def set_config(program):
    program.model.config.act = "gelu"


def set_deep(program):
    program.model.deep.config.act = "tanh"


def append(program):
    program.model.sizes.append(3)


def evaluate(program):
    program.model.norm.eval()


def freeze(program):
    program.model.fc.bias.requires_grad_(False)


def replace(program):
    program.model.fc.weight = nn.Parameter(torch.zeros(3, 6))


def retype(program):
    program.model.fc.weight.data = torch.zeros(3, 6, dtype=torch.float64)


def replace_module(program):
    program.model.drop = nn.Identity()


def hook(program):
    program.model.fc.register_forward_hook(lambda module, inputs, output: output)


def step_hook(program):
    program.optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: None)


def dropout(program):
    program.model.drop.p = 0.5


def decay(program):
    program.optimizer.param_groups[0]["weight_decay"] = 0.0


def maximize(program):
    program.optimizer.param_groups[0]["maximize"] = True


def group(program):
    program.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def gradient(program):
    program.model.fc.weight.grad = torch.zeros(3, 6)


def holder(program):
    program.holder.power = 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_gain, "gain is 4.0, captured as 3.0"),
        (set_config, "config.act is 'gelu', captured as 'relu'"),
        (set_deep, "deep.config.act is 'tanh', captured as 'relu'"),
        (append, "sizes is [1, 2, 3], captured as [1, 2]"),
        (evaluate, "norm.training is False, captured as True"),
        (freeze, "requires_grad of fc.bias is False, captured as True"),
        (replace, "the parameter fc.weight was replaced"),
        (retype, "dtype of fc.weight is torch.float64, captured as torch.float32"),
        (replace_module, "the submodule drop was replaced"),
        (hook, "a hook of a module was added or removed"),
        (step_hook, "a step hook of the optimizer was added or removed"),
        (dropout, "drop.p is 0.5, captured as 0.1"),
        (
            decay,
            "a number of the optimizer's groups (weight_decay, momentum, ..) became zero, or no longer is",
        ),
        (maximize, "maximize of group 0 of the optimizer is True, captured as False"),
        (group, "the optimizer has 2 groups, captured as 1"),
        (gradient, "a .grad stands before the step that did not, or the other way round"),
        (holder, "SimpleNamespace in a closure.power is 2, captured as 1"),
    ],
)
def test_what_was_changed(program, change, words):
    change(program)
    assert check(program) == words


def test_globals(program, monkeypatch):
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "SCALE", 3.0)
    assert check(program) == f"the global {__name__}.SCALE is 3.0, captured as 2.0"
    monkeypatch.undo()
    assert check(program) is None
    monkeypatch.setitem(OPTIONS, "power", 3)
    assert check(program) == f"the global {__name__}.OPTIONS is {{'power': 3}}, captured as {{'power': 2}}"


def test_closures():
    factor = 1.0

    def loss(model, x):
        return model(x).sum() * factor

    model = nn.Linear(6, 3)
    batch = (torch.zeros(4, 6),)
    guards = capture_step(model, loss, None, batch).guards
    factor = 2.0
    assert (
        guards.check(model, None, batch)
        == f"factor, which {loss.__qualname__} closes over is 2.0, captured as 1.0"
    )


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((torch.zeros(5, 6), torch.zeros(4, 3), "mean"), "batch.0 is a float32 tensor of shape (5, 6)"),
        ((torch.zeros(4, 6).double(), torch.zeros(4, 3), "mean"), "batch.0 is a float64 tensor"),
        (
            (torch.zeros(6, 4).t(), torch.zeros(4, 3), "mean"),
            "batch.0 is a float32 tensor of shape (4, 6) and strides (1, 4)",
        ),
        ((torch.zeros(4, 6), torch.zeros(4, 3), "sum"), "batch.2 is 'sum', captured as 'mean'"),
        ((torch.zeros(4, 6), torch.zeros(4, 3)), "the batch has another structure"),
        ({"x": torch.zeros(4, 6), "y": torch.zeros(4, 3)}, "the batch has another structure"),
        (
            (torch.zeros(4, 6).requires_grad_(), torch.zeros(4, 3), "mean"),
            "batch.0 is a float32 tensor of shape (4, 6) and strides (6, 1) on cpu that needs a gradient",
        ),
        ((1, torch.zeros(4, 3), "mean"), "batch.0 is 1, captured as a float32 tensor"),
    ],
)  # fmt: skip
def test_batches(program, batch, words):
    assert check(program, batch).startswith(words)


def test_modes(program):
    with torch.no_grad():
        assert check(program) == "a mode of torch is not as captured: grad"
    with torch.autocast("cpu", torch.bfloat16):
        assert check(program) == "a mode of torch is not as captured: autocast"
    assert check(program) is None


def test_numbers_that_schedules_change_break_nothing(program):
    program.optimizer.param_groups[0].update(lr=0.5, betas=(0.5, 0.6), weight_decay=0.7, eps=1e-3)
    program.model.config.unread = 5
    program.model.norm.running_mean = torch.ones(3)
    assert check(program) is None


def test_state_that_was_cleared(program):
    for parameter in program.model.parameters():
        program.optimizer.state[parameter] = {
            "step": torch.tensor(1.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    guards = capture_step(program.model, make(), program.optimizer, program.batch).guards
    assert guards.check(program.model, program.optimizer, program.batch) is None
    program.optimizer.state.clear()
    assert (
        guards.check(program.model, program.optimizer, program.batch) == "the optimizer's state was cleared"
    )


def test_gradients_alone_do_not_look_at_grad(program):
    guards = capture_step(program.model, make(), None, program.batch).guards
    gradient(program)
    assert guards.check(program.model, None, program.batch) is None


COLLECTIONS = 0


def _count(phase, info):
    global COLLECTIONS
    COLLECTIONS += 1


def test_what_a_garbage_collection_runs_is_no_code_of_the_model():
    model = torch.nn.Linear(3, 1)
    gc.callbacks.append(_count)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        captured = capture_step(model, lambda m, x: m(x).sum(), None, (torch.ones(2, 3),))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(_count)
    _count("start", {})
    assert captured.guards.check(model, None, (torch.ones(2, 3),)) is None
