"""The front of a step on the command line: monotone, measured, and as JSON."""

import json
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from peakfold.cli.failures import guarded
from peakfold.cli.main import app


def test_the_front_of_a_small_step(tmp_path):
    out = tmp_path / "front.json"
    args = [
        "pareto",
        "bert",
        "--size",
        "tiny",
        "--no-fission",
        "--iterations",
        "150",
        "--measure",
        "--json",
        str(out),
    ]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    front = json.loads(out.read_text())
    points = front["points"]
    assert all(a["peak_bytes"] > b["peak_bytes"] for a, b in pairwise(points))
    assert all(a["latency_ratio"] < b["latency_ratio"] for a, b in pairwise(points))
    run = [point for point in points if point["equal"] is not None]
    assert run
    assert all(point["equal"] for point in run)
    assert all(abs(p["measured_memory_ratio"] / p["memory_ratio"] - 1) < 0.01 for p in run)


TARGET = """
import torch

def make():
    model = torch.nn.Linear(4, 1)
    return model, lambda m, x: m(x).sum(), torch.optim.SGD(model.parameters()), (torch.ones(3, 4),)

def described():
    model = torch.nn.Linear(4, 1, device="meta")
    return model, lambda m, x: m(x).sum(), None, (torch.ones(3, 4, device="meta"),)
"""


@pytest.mark.parametrize(("function", "device"), [("make", "sim:rtx3090"), ("described", "cpu")])
def test_points_are_not_measured_where_nothing_can_be_run(function, device, tmp_path, capsys):
    (tmp_path / "train.py").write_text(TARGET)
    arguments = ["pareto", f"{tmp_path}/train.py:{function}", "--measure", "--device", device]
    assert guarded(app, arguments) == 2
    err = capsys.readouterr().err
    assert "options: points of the front cannot be measured where nothing can be run" in err
    assert "next: leave --measure out: every point is predicted" in err


def test_what_is_wrong_with_the_cache_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text(TARGET)
    (tmp_path / "cache").write_text("no folder")
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))
    arguments = ["pareto", f"{tmp_path}/train.py:make", "--no-fission", "--iterations", "20"]
    assert guarded(app, arguments) == 0
    assert "note: " in capsys.readouterr().out
