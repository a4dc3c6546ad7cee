"""The front of a step on the command line: monotone, measured, and as JSON."""

import json
from itertools import pairwise

from typer.testing import CliRunner

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
