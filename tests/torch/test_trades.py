"""Rewrites for memory in the search: made where a plan of the rewritten graph is better, and only there."""

import pytest
import torch
from torch import nn

import peakfold
from peakfold.bridge.runtime.retype import retyped
from peakfold.cost import roofline
from peakfold.graph.rewrite.simplify import simplify
from peakfold.graph.wl import hashed
from peakfold.ir.plan import Plan, Recompute
from peakfold.pipeline import trades
from peakfold.pipeline.optimize import optimize
from peakfold.pipeline.request import request
from peakfold.pipeline.task import Task
from peakfold.plan.check import require_legal
from peakfold.plan.schedule.found import Point
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.lower import lower
from peakfold.plan.search.rewrites import FAMILIES, State, neighbours, rewritten


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No plan is there that an earlier run kept."""
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))


def classifier(classes=4096):
    """A step whose peak is the gradient of a loss over many classes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, classes))
    batch = (torch.randn(64, 8), torch.randint(0, classes, (64,)))
    loss = nn.functional.cross_entropy
    return model, lambda m, x, y: loss(m(x), y), torch.optim.SGD(model.parameters(), 0.1), batch


def pooled():
    """A step that keeps the places of a pooling of small windows, and not what is pooled."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.MaxPool2d(1), nn.Tanh(), nn.Conv2d(2, 64, 1), nn.Tanh())
    batch = (torch.randn(8, 1, 16, 16),)
    return model, lambda m, x: m(x).square().mean(), torch.optim.SGD(model.parameters(), 0.1), batch


def chosen(step):
    return [note for note in step.report.notes if note.startswith("rewritten for memory")]


def test_a_budget_that_only_a_rewritten_graph_keeps_is_kept():
    step = peakfold.optimize_step(*classifier(), latency=3.0, iterations=60, rounding=True)
    assert "fused_losses at 1 place" in chosen(step)[0]
    assert step.report.equal.ok
    budget = step.report.optimized.peak_bytes
    with pytest.raises(peakfold.errors.InfeasibleError):
        peakfold.optimize_step(*classifier(), memory=budget, iterations=60, verify=False, rewrite=False)
    again = peakfold.optimize_step(*classifier(), memory=budget, iterations=60, rounding=True)
    assert again.report.equal.ok
    assert again.report.optimized.peak_bytes <= budget


def test_a_plan_of_a_rewritten_graph_applies_again(monkeypatch):
    def rewritten_first(*args, **options):
        return tuple(sorted(rewritten(*args, **options), key=lambda state: not state.families))

    monkeypatch.setattr(trades, "rewritten", rewritten_first)
    step = peakfold.optimize_step(*pooled(), latency=3.0, iterations=20)
    assert "narrow_indices at 1 place" in chosen(step)[0]
    assert step.report.equal.ok
    asked = request(None, None, 0, 0, 0, "eager", True, plan=step.report.texts.plan)
    again = optimize(Task(*pooled()), asked)
    assert again.report.equal.ok
    assert again.report.optimized.peak_bytes == step.report.optimized.peak_bytes
    assert again.report.texts.plan == step.report.texts.plan
    other = peakfold.optimize_step(*pooled(), latency=3.0, iterations=20, rewrite=False)
    assert not chosen(other)
    model, loss, optimizer, (x,) = pooled()
    step = peakfold.optimize_step(model, loss, optimizer, (x,), latency=3.0, iterations=20)
    assert torch.isfinite(step(x[:2]))


def test_nothing_is_traded_for_what_is_free():
    assert not chosen(peakfold.optimize_step(*pooled(), iterations=20))


@pytest.mark.parametrize(("memory", "latency"), [("90%", None), (None, 1.3), ("90%", 1.5)])
def test_no_program_is_larger_or_slower_than_without(memory, latency, monkeypatch):
    asked = request(memory, latency, 60, 60, 0, "eager", False, "sim:rtx3090", offload="none")
    with_ = optimize(Task(*pooled()), asked).report.optimized
    monkeypatch.setattr(trades, "INTERIM", {})
    without = optimize(Task(*pooled()), asked).report.optimized
    if memory is None:
        assert with_.predicted_peak_bytes <= without.predicted_peak_bytes
    else:
        assert with_.predicted_latency_ratio <= without.predicted_latency_ratio * (1 + 1e-9)


class Attention(nn.Module):
    """Products that share an input, and whose results are read through views."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (2, 16)).transpose(1, 2) for part in self.parts)
        return ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2)


def attention():
    torch.manual_seed(0)
    model = Attention()
    batch = (torch.randn(2, 16, 32),)
    return model, lambda m, x: m(x).square().mean(), torch.optim.SGD(model.parameters(), 0.1), batch


@pytest.mark.parametrize("step", [attention, classifier, pooled])
def test_any_plan_of_a_graph_is_carried_to_a_legal_one_of_the_next(step):
    graph = simplify(Task(*step()).capture().graph).graph

    def plans(one, costs):
        gaps = {
            (one.storage(value).node, reader) for value, readers in one.users.items() for reader in readers
        }
        steps = {node.id for node in one.nodes if not node.is_view and node.origin.phase != "update"}
        held = [Recompute(a, b) for a, b in sorted(gaps) if a in steps and b in steps]
        return [Point(0, 0.0, Plan(one.digest, tuple(held)))]

    def costs_of(one):
        return roofline.estimate(one, "rtx3090")

    states = rewritten(graph, costs_of, retyped, plans, Goal(None, 1.0), keep_bits=False)
    moved = [state for state in states if state.families]
    assert moved
    for state in moved:
        assert state.carried.plan.recompute
        require_legal(state.graph, lower(state.graph, state.carried.plan))
    first = list(neighbours(State(hashed(graph)), FAMILIES, retyped, keep_bits=True))
    assert all(state.keeps_bits for state in first)
