"""Calls of another shape in the middle of a training: limits that cannot be kept for them."""

import copy
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import peakfold
from peakfold import LatencyWarning
from peakfold.errors import InfeasibleError
from peakfold.pipeline.anew import made_anew
from peakfold.pipeline.request import request

NONE_WITHIN = InfeasibleError("search", "no plan measured within the limits", expected="1.1x", got="1.3x")


def asked_for(memory=None, latency=None):
    return request(memory, latency, 0, 1, 0, "eager", True)


def keeps(able, tried):
    """Return what optimizes where a request is one that can be kept; else it refuses."""

    def optimized(asked, *, notes):
        tried.append((asked.memory and (asked.memory.share or asked.memory.nbytes), asked.latency))
        if not able(asked):
            raise replace(NONE_WITHIN)
        return asked, notes

    return optimized


def test_a_limit_of_the_time_gives_way_with_a_warning():
    tried = []
    with pytest.warns(LatencyWarning) as said:
        asked, notes = made_anew(keeps(lambda a: a.latency is None, tried), asked_for("1MB", 1.1), 10**6)
    assert tried == [(10**6, 1.1), (10**6, None)]
    assert asked.memory.nbytes == 10**6
    words = "no program for this call was found within 1.1x eager's time: the fastest is used"
    assert notes[1:] == (words,)
    assert str(said[0].message) == (
        f"step: {words}\n  expected: 1.1x\n  got: 1.3x\n"
        "  next: if that is too slow, make the step with more time or more memory"
    )


def test_a_share_is_at_least_the_bytes_of_the_first_call():
    tried = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, notes = made_anew(keeps(lambda a: a.memory.nbytes, tried), asked_for("50%"), 500)
    assert tried == [(0.5, None), (500, None)]
    assert "the 500 bytes of the first call hold" in notes[1]


def test_a_share_and_a_time_give_way_one_after_the_other():
    tried = []
    with pytest.warns(LatencyWarning):
        made_anew(keeps(lambda a: a.memory.nbytes and not a.latency, tried), asked_for("50%", 1.1), 500)
    assert tried == [(0.5, 1.1), (500, 1.1), (500, None)]


@pytest.mark.parametrize("limits", [("1MB", None), ("1MB", 1.1), ("50%", None), ("50%", 1.1), ("fit", 1.1)])
def test_bytes_never_give_way(limits):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InfeasibleError):
            made_anew(keeps(lambda a: a.memory is None, []), asked_for(*limits), 500)


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("limits", [{"memory": "50%"}, {"latency": 1000.0}])
def test_the_last_batch_of_an_epoch_ends_no_training(limits, costs, monkeypatch):
    """A smaller batch: its eager peak is weights, half of them is no budget; no time is left to give up."""
    monkeypatch.setenv("PEAKFOLD_CACHE", str(costs))
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3)])
    optimizer = torch.optim.AdamW(model.parameters())

    def loss_fn(model, x):
        return model(x).square().mean()

    x = torch.randn(1024, 16)
    step = peakfold.optimize_step(model, loss_fn, optimizer, (x,), **limits, iterations=50, verify=False)
    twin, eager = copy.deepcopy((model, optimizer))
    step(x)
    if "latency" in limits:
        monkeypatch.setattr("peakfold.pipeline.attempts._ratio", lambda part, whole: 1e6)
        with pytest.warns(LatencyWarning):
            step(x[:4])
    else:
        step(x[:4])
        assert step.report.peak_bytes <= step.report.limits.memory_bytes
    for batch in (x, x[:4]):
        loss_fn(twin, batch).backward()
        eager.step()
        eager.zero_grad()
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
