"""Fronts of rewritten graphs: which graph is searched, and that its points are equal and applied again."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from peakfold.bridge.capture import capture_step
from peakfold.cli.main import app
from peakfold.ir.plan import Plan
from peakfold.pipeline import pareto as fronts
from peakfold.pipeline.forms import forms, height
from peakfold.pipeline.moves import is_for
from peakfold.pipeline.quicker import every
from peakfold.pipeline.request import request
from peakfold.plan.schedule.found import Point

TARGET = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return torch.softmax(q @ k.mT, -1) @ v

def make():
    torch.manual_seed(0)
    model = nn.Sequential(Attention(), nn.Tanh(), nn.Linear(24, 3))
    x = torch.randn(4, 16, 24)
    return model, lambda m, x: m(x).square().mean(), torch.optim.SGD(model.parameters(), 0.1), (x,)
"""


def setting():
    space = {}
    exec(TARGET, space)
    return space["make"]()


def unsplit(asked):
    """Return a search without regions, of the graphs that are chosen among with them."""
    return replace(asked, fission=False)


def test_points_of_rewritten_graphs_are_equal_and_their_plans_are_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fronts, "FIRST", 2)
    monkeypatch.setattr(fronts, "LIMITS", ())
    search = fronts._searched
    monkeypatch.setattr(fronts, "_searched", lambda *given: search(*given[:4], unsplit(given[4]), given[5]))
    (tmp_path / "train.py").write_text(TARGET)
    out = tmp_path / "front.json"
    options = ["--rewrite", "--iterations", "2", "--measure", "--json", str(out)]
    result = CliRunner().invoke(app, ["pareto", f"{tmp_path}/train.py:make", *options])
    assert result.exit_code == 0, result.output
    front = json.loads(out.read_text())
    run = [point for point in front["points"] if point["equal"] is not None]
    assert run
    assert all(point["equal"] for point in run)
    assert all(abs(p["measured_memory_ratio"] / p["memory_ratio"] - 1) < 0.01 for p in run)
    graph = capture_step(*setting()).graph
    starts = [one(graph) for one in every(graph)]
    assert all(any(is_for(point["plan"], start) for start in starts) for point in front["points"])


@pytest.mark.parametrize("fission", [False, True])
def test_the_lowest_front_comes_first_and_the_captured_graph_wins_ties(fission):
    graph = capture_step(*setting()).graph
    asked = request(None, None, 1, 0, 0, "eager", False, fission=fission)
    wanted = []

    def search(one, alone):
        assert not alone.fission
        wanted.append(one.digest)
        merged = len(wanted) > 2
        return [Point(90 if merged else 100, 1.0, Plan(one.digest))]

    found = forms(graph, search, asked, [1.0])
    assert wanted[0] == graph.digest
    assert len(set(wanted)) == len(wanted)
    merges = [form for form in found if any("merged" in name for name, _ in form.state.families)]
    assert bool(merges) == fission
    if fission:
        assert found[0].state.families
        assert not found[0].state.keeps_bits
    else:
        assert found[0].graph is graph
        assert found[0].words == ""


def test_a_front_that_misses_a_time_is_the_highest():
    points = [Point(4, 2.0, Plan(""))]
    assert height(points, (1.0, 3.0)) == float("inf")
    assert height(points, (3.0,)) == pytest.approx(float(torch.tensor(4.0).log()))
