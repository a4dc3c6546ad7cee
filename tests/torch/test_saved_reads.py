"""What the code of a saved program is and reads outside of the model is compared with what is there now."""

import importlib.util
import sys

import pytest
import torch
from tests.torch.programs import plain_schedule

import peakfold
from peakfold.bridge.capture import capture_step
from peakfold.bridge.capture.value_texts import alike
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.runtime.bind import Subject
from peakfold.bridge.runtime.compiled import compiled
from peakfold.bridge.runtime.load import load
from peakfold.bridge.runtime.step import Step
from peakfold.errors import CaptureError, PlanError
from peakfold.ir.plan import Plan

SOURCE = """
import os, types
import torch
from torch import nn

SCALE, SIZES, FACTOR, UNREAD = 2.0, {0: 1.0, 1: 2.0}, torch.ones(2), 1
HOLDER = types.SimpleNamespace(by=2.0, unread=1)
CRITERION = nn.CrossEntropyLoss(weight=torch.ones(2), label_smoothing=0.1)
ACT = torch.tanh

def twice(x, by=2.0):
    return x * by

def unread(x):
    return x

def times(by):
    return lambda x: x * by

def model():
    inner = 3.0

    class Net(nn.Module):
        rate = 2.0

        def __init__(self):
            super().__init__()
            self.fc, self.act = nn.Linear(4, 2), times(0.5)

        @torch.no_grad()
        def shifted(self):
            return SIZES[0]

        def helper(self, x):
            return x + 1

        def forward(self, x):
            x = self.helper(self.fc(x)) * SCALE * self.shifted() * FACTOR * HOLDER.by * self.rate * inner
            return self.act(ACT(twice(x)))

    return Net()

POWER = 2.0

def loss(shift):
    def of(model, x):
        known = float(os.environ.get("PEAKFOLD_TEST_FACTOR", "1"))
        return CRITERION(model(x) ** POWER + shift, torch.zeros(3, dtype=torch.long)) * known
    return of
"""

BATCH = (torch.ones(3, 4),)


def module_of(folder, source=SOURCE):
    path = folder / "some_model.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("some_model", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["some_model"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file, and the module whose model it is of."""
    folder = tmp_path_factory.mktemp("saved")
    found = module_of(folder)
    model, loss = found.model(), found.loss(0.5)
    captured = capture_step(model, loss, None, BATCH)
    source = emit(captured.graph, plain_schedule(captured.graph))
    made = compiled(captured, Plan(captured.graph.digest), source, model, None, BATCH)
    Step(Subject(model, None), made).save(folder / "step")
    yield folder / "step", found
    del sys.modules["some_model"]


def setting(name, value):
    return lambda found, net, patch: patch.setattr(found, name, value)


def cell(function, value):
    return lambda found, net, patch: patch.setattr(function(net).__closure__[0], "cell_contents", value)


CHANGES = {
    "a number": (setting("SCALE", 3.0), "the global some_model.SCALE is 3.0"),
    "a dict": (
        setting("SIZES", {0: 1.5}),
        "the global some_model.SIZES is {0: 1.5} instead of {0: 1.0, 1: 2.0}",
    ),
    "an item": (
        lambda f, n, p: p.setitem(f.SIZES, 1, 3.0),
        "the global some_model.SIZES is {0: 1.0, 1: 3.0}",
    ),
    "a tensor": (setting("FACTOR", torch.zeros(2)), "the global some_model.FACTOR"),
    "a function of torch": (setting("ACT", torch.relu), "the global some_model.ACT"),
    "a function": (setting("twice", lambda x, by=2.0: x), "the global some_model.twice"),
    "a default": (lambda f, n, p: p.setattr(f.twice, "__defaults__", (3.0,)), "the code of some_model.twice"),
    "an object": (lambda f, n, p: p.setattr(f.HOLDER, "by", 3.0), "the global some_model.HOLDER.by is 3.0"),
    "a criterion": (lambda f, n, p: p.setattr(f.CRITERION, "label_smoothing", 0.2), "some_model.CRITERION"),
    "its weight": (
        lambda f, n, p: p.setitem(f.CRITERION._buffers, "weight", torch.zeros(2)),
        "some_model.CRITERION",
    ),
    "of the loss": (setting("POWER", 3.0), "the global some_model.POWER is 3.0"),
    "of the class": (lambda f, n, p: p.setattr(type(n), "rate", 3.0), "Net.rate is 3.0"),
    "a variable": (
        lambda f, n, p: p.setenv("PEAKFOLD_TEST_FACTOR", "3"),
        "the environment variable PEAKFOLD_TEST_FACTOR is '3'",
    ),
    "a closure of the class": (
        cell(lambda n: n.forward.__func__, 4.0),
        "inner, which model.<locals>.Net.forward closes",
    ),
    "a closure of an attribute": (cell(lambda n: n.act, 4.0), "by, which times.<locals>.<lambda> closes"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_the_code_reads_is_seen(case, saved, monkeypatch):
    """Between saving and loading, and after that."""
    change, words = CHANGES[case]
    path, found = saved
    net = found.model()
    step = load(path, net, None)
    step(*BATCH)
    with monkeypatch.context() as patch:
        change(found, net, patch)
        with pytest.raises(PlanError) as caught:
            load(path, net, None)
        assert words in str(caught.value).splitlines()[3]
        assert "next: build them the same way, or optimize again" in str(caught.value)
        with pytest.raises(CaptureError, match="the step does not hold for this call"):
            step(*BATCH)
    step(*BATCH)
    load(path, net, None)(*BATCH)


def test_what_the_code_does_not_read_is_not_seen(saved, monkeypatch):
    path, found = saved
    monkeypatch.setattr(found, "UNREAD", 2)
    monkeypatch.setattr(found.HOLDER, "unread", 2)
    monkeypatch.setattr(found, "unread", lambda x: -x)
    step = load(path, found.model(), None)
    step(*BATCH)
    monkeypatch.setattr(found, "UNREAD", 3)
    step(*BATCH)


def test_a_tensor_that_is_written_into(saved):
    """The file has a copy of its numbers."""
    path, found = saved
    step = load(path, found.model(), None)
    found.FACTOR.mul_(2)
    with pytest.raises(CaptureError, match=r"some_model\.FACTOR was written into"):
        step(*BATCH)
    with pytest.raises(PlanError, match=r"some_model\.FACTOR is float32 \[2\]"):
        load(path, found.model(), None)
    found.FACTOR.div_(2)
    load(path, found.model(), None)(*BATCH)


@pytest.mark.parametrize(
    ("old", "new", "function"),
    [
        ("x + 1", "x - 1", "model.<locals>.Net.helper"),
        ("return x * by\n", "return by * x * 1.5\n", "twice"),
        ("lambda x: x * by", "lambda x: x / by", "times.<locals>.<lambda>"),
        ("return SIZES[0]", "return SIZES[1]", "model.<locals>.Net.shifted"),
        ("CRITERION(model(x) ** POWER", "CRITERION(model(x) * POWER", "loss.<locals>.of"),
    ],
)
def test_code_that_was_changed(old, new, function, saved, tmp_path, monkeypatch):
    path, _ = saved
    monkeypatch.setitem(sys.modules, "some_model", None)
    found = module_of(tmp_path, SOURCE.replace(old, new))
    with pytest.raises(PlanError) as caught:
        load(path, found.model(), None, loss_fn=found.loss(0.5))
    assert f"{function} was changed" in str(caught.value)


def test_comments_and_code_that_is_not_run_may_change(saved, tmp_path, monkeypatch):
    path, _ = saved
    monkeypatch.setitem(sys.modules, "some_model", None)
    text = SOURCE.replace("def unread(x):\n    return x", "# more\ndef unread(x):\n    return -x  # less")
    found = module_of(tmp_path, text)
    load(path, found.model(), None, loss_fn=found.loss(0.5))(*BATCH)


def test_what_a_loss_closes_over_is_compared_where_it_is_given(saved):
    path, found = saved
    load(path, found.model(), None, loss_fn=found.loss(0.5))(*BATCH)
    with pytest.raises(
        PlanError, match=r"shift, which loss\.<locals>\.of closes over, is 1\.5 instead of 0\.5"
    ):
        load(path, found.model(), None, loss_fn=found.loss(1.5))
    with pytest.raises(PlanError, match=r"is 1\.5 instead of 0\.5"):
        peakfold.load(path, found.model(), loss_fn=found.loss(1.5))
    load(path, found.model(), None)(*BATCH)


def test_the_globals_of_a_module_that_is_not_there_are_not_compared(saved, tmp_path, monkeypatch):
    """A model of the same form whose code is elsewhere."""
    path, found = saved
    net = found.model()
    monkeypatch.delitem(sys.modules, "some_model")
    monkeypatch.setattr(found, "POWER", 3.0)
    monkeypatch.setattr(found, "SCALE", 3.0)
    with pytest.raises(PlanError, match=r"some_model\.POWER is 3\.0|some_model\.SCALE is 3\.0"):
        load(path, net, None)
    load(path, torch.nn.ModuleDict({"fc": torch.nn.Linear(4, 2)}), None)


def test_instructions_of_another_python_are_not_compared():
    old, new = "function 3.10 f 012345678901 with (1.0)", "function 3.99 f 112345678901 with (1.0)"
    assert alike((old,), (new,))
    assert not alike((old,), (new.replace("1.0", "2.0"),))
    mine = f"function {sys.version_info.major}.{sys.version_info.minor} f "
    assert alike((f"{mine}012345678901",), (f"{mine}012345678901",))
    assert not alike((f"{mine}012345678901",), (f"{mine}112345678901",))
