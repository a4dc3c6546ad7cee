"""Python code that reads the values of tensors: each kind names the user's line, and what to write."""

import pytest
import torch
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
