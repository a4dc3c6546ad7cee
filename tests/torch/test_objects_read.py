"""What the model's code reads through Python objects is guarded: which object is there, and what is in it."""

import functools
import types
from collections import OrderedDict
from enum import Enum

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakfold.bridge.capture import capture_step


class Mode(Enum):
    ONE = 1
    TWO = 2


class Gain:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return x * self.by


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by):
        self.by = by


class Gained(nn.Module):
    """Reads one thing, which a test says."""

    rate = 2.0

    def __init__(self, read):
        super().__init__()
        self.fc, self.read = nn.Linear(4, 2), read
        self.gain, self.slotted, self.act, self.acts = Gain(2.0), Slotted(2.0), F.relu, [F.relu, torch.tanh]
        self.gains, self.table, self.mode, self.nested = [Gain(1.0)], {"a": F.relu}, Mode.ONE, ([1.0],)
        self.part = functools.partial(torch.add, alpha=2)
        self.many, self.made = [Gain(1.0)] * 100, Making(a=Gain)

    def forward(self, x):
        return self.read(self, self.helper(self.fc(x)))

    def helper(self, x):
        return x + 1


def squared(model, x):
    return model(x).square().mean()


def guarded(model, loss=squared):
    """Return a function that says what does not hold any more."""
    batch = (torch.ones(3, 4),)
    guards = capture_step(model, loss, None, batch).guards
    assert guards.check(model, None, batch) is None
    return lambda: guards.check(model, None, batch)


def attribute(name, value):
    return lambda model: setattr(model, name, value)


REPLACED = "{} was replaced or changed"


class Making(OrderedDict):
    """Makes a new object each time it is asked, as transformers' table of activations does."""

    def __getitem__(self, key):
        return super().__getitem__(key)(2.0)


MADE = Making(a=Gain)


CASES = {
    "table that makes objects": (
        lambda m, x: MADE["a"](m.made["a"](x)),
        lambda m: m.made.update(b=Gain),
        REPLACED.format("made"),
    ),
    "kind of object that a table makes": (
        lambda m, x: MADE["a"](m.made["a"](x)),
        lambda m: m.made.update(a=type("Other", (Gain,), {})),
        REPLACED.format("made"),
    ),
    "object": (lambda m, x: x * m.gain.by, attribute("gain", Gain(2.0)), REPLACED.format("gain")),
    "called object": (lambda m, x: m.gain(x), attribute("gain", Gain(2.0)), REPLACED.format("gain")),
    "slots": (lambda m, x: x * m.slotted.by, lambda m: setattr(m.slotted, "by", 3.0), "slotted.by is 3.0"),
    "function": (lambda m, x: m.act(x), attribute("act", F.gelu), REPLACED.format("act")),
    "list of functions": (lambda m, x: m.acts[0](x), lambda m: m.acts.reverse(), REPLACED.format("acts")),
    "dict of functions": (
        lambda m, x: m.table["a"](x),
        lambda m: m.table.update(a=F.gelu),
        REPLACED.format("table"),
    ),
    "object in a list": (
        lambda m, x: x * m.gains[0].by,
        lambda m: setattr(m.gains[0], "by", 3.0),
        "an item of gains.by is 3.0",
    ),
    "list in a tuple": (
        lambda m, x: x * m.nested[0][0],
        lambda m: m.nested[0].append(1),
        "nested is ([1.0, 1],)",
    ),
    "enumeration": (
        lambda m, x: x if m.mode is Mode.ONE else -x,
        attribute("mode", Mode.TWO),
        REPLACED.format("mode"),
    ),
    "partial": (
        lambda m, x: m.part(x, x),
        attribute("part", functools.partial(torch.add, alpha=3)),
        REPLACED.format("part"),
    ),
    "class attribute": (
        lambda m, x: x * m.rate,
        lambda m: setattr(type(m), "rate", 3.0),
        "Own.rate is 3.0, captured as 2.0",
    ),
    "before a class attribute": (
        lambda m, x: x * m.rate,
        attribute("rate", 3.0),
        "rate is 3.0, captured as not there",
    ),
    "method of the class": (
        lambda m, x: x,
        lambda m: setattr(type(m), "helper", lambda self, x: x),
        REPLACED.format("Own.helper"),
    ),
    "method of the object": (lambda m, x: x, attribute("helper", lambda x: x), REPLACED.format("helper")),
    "forward of the object": (lambda m, x: x, attribute("forward", lambda x: x), REPLACED.format("forward")),
    "forward of torch's module": (
        lambda m, x: x,
        lambda m: setattr(m.fc, "forward", lambda x: x),
        REPLACED.format("fc.forward"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_model_reads(case):
    read, change, words = CASES[case]
    own = type("Own", (Gained,), {"rate": 2.0, "helper": Gained.helper})
    model = own(read)
    broken = guarded(model)
    change(model)
    assert (broken() or "").startswith(words)


FACTOR = torch.ones(2)
CRITERION = nn.CrossEntropyLoss(weight=torch.ones(2), label_smoothing=0.1)
HOLDER = types.SimpleNamespace(by=Gain(2.0))


def twice(x):
    return x * 2


def weigh(model, x):
    logits = twice(model(x)) * FACTOR * HOLDER.by.by
    return CRITERION(logits, torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda patch, here: patch.setitem(here, "twice", lambda x: x), "twice was replaced or changed"),
        (lambda patch, here: patch.setitem(here, "FACTOR", torch.zeros(2)), "FACTOR was replaced or changed"),
        (lambda patch, here: patch.setattr(HOLDER, "by", Gain(2.0)), "HOLDER.by was replaced or changed"),
        (
            lambda patch, here: patch.setattr(CRITERION, "label_smoothing", 0.2),
            "label_smoothing is 0.2, captured as 0.1",
        ),
        (
            lambda patch, here: patch.setitem(CRITERION._buffers, "weight", torch.zeros(2)),
            "weight was replaced or changed",
        ),
        (
            lambda patch, here: patch.setattr(CRITERION, "training", False),
            "training is False, captured as True",
        ),
    ],
)
def test_what_the_loss_names_as_globals(monkeypatch, change, words):
    broken = guarded(nn.Linear(4, 2), weigh)
    change(monkeypatch, globals())
    assert words in (broken() or "")
    monkeypatch.undo()
    assert broken() is None
    FACTOR.mul_(1)
    assert broken() is None


def test_a_hook_on_a_criterion_beside_the_model():
    broken = guarded(nn.Linear(4, 2), weigh)
    handle = CRITERION.register_forward_hook(lambda module, args, output: output * 2)
    assert broken() == "a hook of a module was added or removed"
    handle.remove()
    assert broken() is None


def test_what_a_closure_holds():
    act, gain = F.relu, Gain(2.0)

    def loss(model, x):
        return act(model(x)).mean() * gain.by

    broken = guarded(nn.Linear(4, 2), loss)
    act = torch.tanh
    assert broken().startswith("act, which test_what_a_closure_holds.")
    act = F.relu
    assert broken() is None
    gain = Gain(2.0)
    assert broken().startswith("gain, which test_what_a_closure_holds.")


def test_an_object_as_loss():
    class Loss:
        def __init__(self):
            self.act, self.by = F.relu, 1.0

        def __call__(self, model, x):
            return self.act(model(x)).mean() * self.by

    loss = Loss()
    broken = guarded(nn.Linear(4, 2), loss)
    loss.act = torch.tanh
    assert broken() == "Loss in a closure.act was replaced or changed"


loss = 0.0


def test_a_global_with_the_name_of_an_attribute_is_not_read():
    """``loss = step(x)`` in a script, and ``model(x).loss`` in its loss function."""

    def of(model, x):
        return types.SimpleNamespace(loss=squared(model, x)).loss

    broken = guarded(nn.Linear(4, 2), of)
    globals()["loss"] = 1.0
    assert broken() is None


def test_what_the_code_sets_itself_may_be_another_object():
    """An eager step between two others sets it again."""

    class Sets(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.last = nn.Linear(4, 2), None

        def forward(self, x):
            self.last = Gain(2.0)
            return self.last(self.fc(x))

    model = Sets()
    model(torch.ones(3, 4))
    broken = guarded(model)
    model(torch.ones(3, 4))
    assert broken() is None
    model.last.by = 3.0
    model(torch.ones(3, 4))
    assert broken() is None
