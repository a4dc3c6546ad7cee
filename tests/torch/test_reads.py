"""What a program reads beside its tensors, and what its Python keeps: never a stale replay."""

import os

import pytest
import torch
from torch import nn

import peakfold
from peakfold.bridge.capture import capture_inference, capture_step
from peakfold.errors import CaptureError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))


def images():
    return torch.ones(3, 4)


def squared(model, x):
    return model(x).square().mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.0)


def optimized(model, loss_fn=squared):
    return peakfold.optimize_step(model, loss_fn, sgd(model), (images(),), iterations=5, time_budget=1)


class Asking(nn.Module):
    """Asks by ``ask`` whether it is to double."""

    def __init__(self, ask):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.ask = nn.Linear(4, 2), ask

    def forward(self, x):
        y = self.linear(x)
        return 2 * y if self.ask(self) else y


READS = [
    lambda model: os.environ.get("PEAKFOLD_TEST_DOUBLE") == "1",
    lambda model: os.getenv("PEAKFOLD_TEST_DOUBLE", "0") == "1",
    lambda model: "PEAKFOLD_TEST_DOUBLE" in os.environ and os.environ["PEAKFOLD_TEST_DOUBLE"] == "1",
]


@pytest.mark.parametrize("read", READS)
def test_environment_variables(read, monkeypatch):
    monkeypatch.delenv("PEAKFOLD_TEST_DOUBLE", raising=False)
    model = Asking(read)
    step = optimized(model)
    first = step(images())
    monkeypatch.setenv("PEAKFOLD_TEST_DOUBLE", "1")
    assert step(images()) == 4 * first
    monkeypatch.setenv("PEAKFOLD_TEST_DOUBLE", "0")
    assert step(images()) == first
    monkeypatch.delenv("PEAKFOLD_TEST_DOUBLE")
    assert step(images()) == first
    assert len(step._programs) == 3


class Having(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x) * 2 if hasattr(self, "doubled") else self.linear(x)


class Getting(Having):
    def forward(self, x):
        return self.linear(x) * getattr(self, "doubled", 1)


@pytest.mark.parametrize("kind", [Having, Getting])
def test_attributes_that_are_not_there_yet(kind):
    model = nn.Sequential(kind())
    step = optimized(model)
    first = step(images())
    model[0].doubled = 2
    assert step(images()) == 4 * first
    del model[0].doubled
    assert step(images()) == first
    assert len(step._programs) == 2


def test_an_attribute_that_the_loss_asks_the_model_for():
    model = nn.Linear(4, 2)

    def loss_fn(model, x):
        return squared(model, x) * getattr(model, "factor", 1)

    step = optimized(model, loss_fn)
    first = step(images())
    model.factor = 3
    assert step(images()) == 3 * first


class Keeping(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.linear, self.keep, self.seen, self.last = nn.Linear(4, 2), keep, [], None

    def forward(self, x):
        y = self.linear(x)
        self.keep(self, y)
        return y


KEEPS = {
    "last": lambda model, y: setattr(model, "last", y.detach()),
    "seen": lambda model, y: model.seen.append(y),
    "by_name": lambda model, y: setattr(model, "by_name", {"y": y}),
}


@pytest.mark.parametrize("name", KEEPS)
def test_a_tensor_kept_in_an_attribute_is_refused(name):
    model = Keeping(KEEPS[name])
    with pytest.raises(CaptureError, match=f"keeps a tensor in the Python attribute {name}"):
        capture_step(model, squared, sgd(model), (images(),))
    assert model.seen == []
    assert model.last is None
    with pytest.raises(CaptureError, match="keeps a tensor in the Python attribute"):
        capture_inference(model, (images(),))


def test_a_hook_that_stores_activations_is_refused():
    stored, by_name = [], {}
    for hook in (
        lambda module, args, output: stored.append(output),
        lambda module, args, output: by_name.__setitem__("y", output.detach()),
    ):
        model = nn.Sequential(nn.Linear(4, 2))
        handle = model[0].register_forward_hook(hook)
        with pytest.raises(CaptureError, match=r"the forward pass keeps a tensor in (stored|by_name), which"):
            capture_step(model, squared, sgd(model), (images(),))
        handle.remove()
        stored.clear()
        by_name.clear()
        capture_step(model, squared, sgd(model), (images(),))


def test_a_loss_that_stores_is_refused():
    losses = []

    def loss_fn(model, x):
        losses.append(squared(model, x))
        return losses[-1]

    model = nn.Linear(4, 2)
    with pytest.raises(CaptureError, match="keeps a tensor in losses"):
        capture_step(model, loss_fn, sgd(model), (images(),))


def test_what_may_be_kept():
    """Positions made of shapes alone; weights that torch's own hooks make; flat weights of an LSTM."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.places = nn.Linear(4, 2), None

        def forward(self, x):
            if self.places is None:
                self.places = torch.arange(x.shape[0])
            return self.linear(x) * self.places[:, None]

    for model in (
        Positions(),
        nn.utils.weight_norm(nn.Linear(4, 2)),
        nn.utils.spectral_norm(nn.Linear(4, 2)),
    ):
        capture_step(model, squared, sgd(model), (images(),))


def test_decisions_by_numbers_that_shapes_make():
    """No input has a part in them: what is read is what eager reads."""

    class Deciding(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x):
            places = torch.arange(x.shape[0])
            mask = torch.zeros_like(x[:, 0], dtype=torch.bool)
            mask.logical_not_()
            assert mask.all()
            assert int(mask.sum()) == x.shape[0]
            y = self.linear(x)
            return y * 2 if (places.diff() == 1).all() else y

    step = optimized(Deciding())
    assert step.report.equal.bit_equal


def test_a_number_that_an_input_was_written_into_is_not_known():
    def loss_fn(model, x):
        flags = torch.zeros(3)
        flags[0] = x[0, 0]
        return squared(model, x) * (2 if flags.sum() > 0 else 1)

    model = nn.Linear(4, 2)
    with pytest.raises(CaptureError, match="a value of a tensor is read to decide what Python does"):
        capture_step(model, loss_fn, sgd(model), (images(),))


def test_what_a_capture_runs_itself_is_no_code_of_the_model():
    """It prints the state of numpy's random numbers, for one, to see whether any were drawn."""
    model = nn.Linear(4, 2)
    guards = capture_step(model, squared, sgd(model), (images(),)).guards
    assert {one.module for one in guards.outside} == {__name__}
