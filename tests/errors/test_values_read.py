"""Python code that reads the values of tensors: each kind names the user's line, and what to write."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakfold.bridge.capture import capture_inference, capture_step
from peakfold.errors import CaptureError

KINDS = {
    "an if": lambda x: x if x.sum() > 0 else -x,
    "a chain of conditions": lambda x: x if (x.sum() > 0) and (x.mean() < 1) else -x,
    "not": lambda x: x if not x.any() else -x,
    "item": lambda x: x * x.sum().item(),
    "int": lambda x: x.new_zeros(int(x[0, 0])),
    "float": lambda x: x * float(x.sum()),
    "complex": lambda x: x * complex(x.sum()).real,
    "bool": lambda x: x if bool((x > 0).all()) else -x,
    "range": lambda x: [x + i for i in range(int(x.sum()))],
    "tolist": lambda x: x * x.tolist()[0][0],
    "an index of a list": lambda x: [1, 2, 3][x.argmax()] * x,
    "the end of a slice": lambda x: x[: x.argmax()],
    "in": lambda x: x if 1.0 in x else -x,
    "max of Python": lambda x: x * max(x[0]),
    "sorted": lambda x: sorted(x[0])[0] * x,
    "a key": lambda x: x * {1: 2}.get(x.sum().item(), 3),
    "sizes of parts": lambda x: x.split([int(v) for v in x[0]])[0],
    "a boolean mask": lambda x: x[x > 0],
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "nonzero": lambda x: x.nonzero(),
    "where of one argument": lambda x: torch.where(x > 0)[0],
    "unique": lambda x: x.unique(),
    "bincount": lambda x: torch.bincount(x.long().flatten()),
    "repeats from a tensor": lambda x: torch.repeat_interleave(x, (x[:, 0] > 0).long() + 1, 0),
    "allclose": lambda x: x if torch.allclose(x, x) else -x,
    "equal": lambda x: x if torch.equal(x, -x) else -x,
    "numpy": lambda x: x * float(x.detach().numpy().sum()),
    "asarray": lambda x: x * float(np.asarray(x.detach())[0, 0]),
    "array": lambda x: x * float(np.array(x.detach())[0, 0]),
    "a function of NumPy": lambda x: x * float(np.max(np.abs(x.detach().numpy()))),
    "DLPack": lambda x: x * float(np.from_dlpack(x.detach()).sum()),
    "an address": lambda x: x if x.data_ptr() == x.detach().data_ptr() else -x,
    "bytes of a storage": lambda x: x * x.untyped_storage()[0],
    "for each": lambda x: x * sum(float(v) for v in x[0]),
    "a text of a number": lambda x: x * len(f"{x.sum():.3f}"),
    "is_nonzero": lambda x: x if torch.is_nonzero(x.sum()) else -x,
    "one_hot": lambda x: F.one_hot(x.argmax(1)),
    "round": lambda x: x * round(x.sum().item()),
}


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.layer(x))


def asserts(x):
    assert x.sum() > 0, "positive"
    return x


def halves(x):
    while x.sum() > 1:
        x = x / 2
    return x


def finite(x):
    if torch.isnan(x).any():
        raise ValueError("nan")
    return x


MORE = {"assert": asserts, "while": halves, "raise": finite}


def captured(model, batch, training):
    if training:
        return capture_step(model, lambda m, x: m(x).sum(), None, batch)
    return capture_inference(model, batch)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, *MORE])
def test_a_value_that_python_reads_is_refused_by_file_and_line(kind, training):
    function = (KINDS | MORE)[kind]
    code, model, batch = function.__code__, Net(function), (torch.rand(6, 4),)
    with pytest.raises(CaptureError) as caught:
        captured(model, batch, training)
    file, line = caught.value.where.split(":")[:2]
    lines = {number for *_, number in code.co_lines() if number is not None}
    assert file.endswith("test_values_read.py")
    assert int(line) in lines
    assert "torch.cond" in caught.value.hint
    assert caught.value.what.endswith(("read to decide what Python does", "depends on its data"))


KNOWN = {
    "numpy": lambda x: x * float(torch.arange(4).numpy().sum()),
    "asarray": lambda x: x * torch.from_numpy(np.asarray(torch.ones(4)) * 2.0),
    "DLPack": lambda x: x * float(np.from_dlpack(torch.arange(4)).sum()),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_numbers_that_are_made_of_shapes_alone_may_be_read(kind):
    torch.manual_seed(0)
    model, batch = Net(KNOWN[kind]), (torch.rand(6, 4),)
    graph = capture_inference(model, batch).graph
    assert graph.nodes[-1].op.name == "aten.mul.Tensor"


def in_backward(function):
    model = Net(lambda x: x * 2.0)
    model.layer.register_full_backward_hook(lambda module, into, out: (function(out[0]),))
    return model


def of_a_weight(function):
    model = Net(lambda x: x * 2.0)
    model.layer.weight.register_hook(function)
    return model


def after_a_module(function):
    model = Net(lambda x: x * 2.0)
    model.layer.register_forward_hook(lambda module, args, out: function(out))
    return model


@pytest.mark.parametrize("place", [in_backward, of_a_weight, after_a_module, Net])
@pytest.mark.parametrize(
    "kind", ["an if", "item", "tolist", "numpy", "asarray", "DLPack", "nonzero", "equal"]
)
def test_hooks_and_losses_too(kind, place):
    function = KINDS[kind]
    layers = nn.Sequential(nn.Sequential(nn.Linear(4, 4), place(function)))
    with pytest.raises(CaptureError) as caught:
        capture_step(layers, lambda m, x: m(x).square().sum(), None, (torch.rand(4, 4),))
    assert caught.value.where.startswith(f"{__file__}:{function.__code__.co_firstlineno}: ")
    with pytest.raises(CaptureError) as caught:
        capture_step(nn.Linear(4, 4), lambda m, x: function(m(x)).sum(), None, (torch.rand(4, 4),))
    assert caught.value.where.startswith(f"{__file__}:{function.__code__.co_firstlineno}: ")
