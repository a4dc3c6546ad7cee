"""The front of a step on the command line: monotone, measured, and as JSON."""

import json
from dataclasses import replace
from html import unescape
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from peakfold.bench import beside, peers
from peakfold.bridge.runtime import arena_native
from peakfold.cli.failures import guarded
from peakfold.cli.main import app
from peakfold.pipeline import pareto as fronts
from peakfold.pipeline.peers import PeerOf, ahead, peers_of, worth_timing
from peakfold.pipeline.task import Task
from peakfold.report.progress import silent
from peakfold.workloads import build


def test_the_front_of_a_small_step(tmp_path, monkeypatch):
    monkeypatch.setattr(fronts, "FIRST", 2)
    monkeypatch.setattr(fronts, "LIMITS", (1.1,))
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
        "--out",
        str(tmp_path / "page"),
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
    off = front["errors"]
    assert off["points"] == len(run)
    assert off["memory"] == max(abs(p["memory_ratio"] / p["measured_memory_ratio"] - 1) for p in run)
    assert off["latency"] == max(abs(p["latency_ratio"] / p["measured_latency_ratio"] - 1) for p in run)
    corrected = [p["corrected_latency_ratio"] / p["measured_latency_ratio"] - 1 for p in run]
    assert off["corrected_latency"] == pytest.approx(max(map(abs, corrected)), abs=1e-6)
    assert f"predicted against measured, {len(run)} points: bytes within 0.0%" in result.output
    _check_peers(front, run)
    page = (tmp_path / "page" / "front.html").read_text()
    assert all(f"{p['name']}: {p['memory_ratio']:.3f} of the memory" in page for p in _timed(front))
    assert json.loads((tmp_path / "page" / "front.json").read_text()) == front
    assert front["ahead"]["words"] in unescape(page)


def _check_peers(front, run):
    """Peers are those of the benchmark, and the front is compared with those that were timed beside it."""
    peers = {peer["name"]: peer for peer in front["peers"]}
    counts, every = (2, 4), (1, 2, 3)
    both = {f"accumulate-{n}+checkpoint-{k}" for n in counts for k in every}
    assert set(peers) == {f"accumulate-{n}" for n in counts} | {f"checkpoint-{k}" for k in every} | both
    assert all(peer["equal"] for peer in peers.values())
    for peer in peers.values():
        assert peer["timed"] or any(other["memory_ratio"] <= peer["memory_ratio"] for other in _timed(front))
    known = [(1.0, 1.0), *((p["memory_ratio"], p["latency_ratio"]) for p in _timed(front))]
    left = [
        point
        for point in run
        if all(
            point["measured_memory_ratio"] < memory
            for memory, seconds in known
            if seconds <= point["measured_latency_ratio"]
        )
    ]
    assert (front["ahead"]["points"], front["ahead"]["left"]) == (len(run), len(left))
    assert front["ahead"]["latency"] == min(point["measured_latency_ratio"] for point in run)
    assert front["ahead"]["peer_latency"] == min(seconds for _, seconds in known)


def _timed(front):
    return [peer for peer in front["peers"] if peer["timed"]]


def test_a_peer_that_fails_or_is_not_equal_is_no_peer_to_be_ahead_of(monkeypatch):
    def broken(target):
        raise ValueError("out of luck")

    def lazy(target):
        target.optimizer.param_groups[0]["lr"] = 0.0
        return peers.eager(target)

    known = {"eager": peers.eager, "checkpoint-1": broken, "accumulate-2": lazy, "accumulate-4": peers.eager}
    monkeypatch.setattr(beside, "catalog", lambda blocks, batch: known)
    task = Task.of(build("bert", "tiny", optimizer="sgd"))
    seen = beside.simple_peers("bert")(task, silent)
    assert list(worth_timing(seen)) == ["accumulate-4"]
    of = {one.name: one for one in peers_of(seen, {"accumulate-4": 2.0})}
    assert of["checkpoint-1"].error == "ValueError: out of luck"
    assert of["accumulate-2"].equal is False
    assert of["accumulate-4"] == PeerOf("accumulate-4", 1.0, 2.0, True, True)
    lying = replace(of["accumulate-2"], memory_ratio=0.1, latency_ratio=0.5, timed=True)
    assert ahead([(0.5, 1.0)], [lying, of["checkpoint-1"]]).left == 1
    assert ahead([(1.0, 3.0)], [of["accumulate-4"]]).left == 0


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["bert", "--size", "tiny"], "add --measure, or leave --peers out"),
        (["bert", "--size", "tiny", "--inference", "--measure"], "leave --peers out"),
        (["swin", "--measure"], "leave --peers out"),
    ],
)
def test_peers_are_refused_where_there_are_none(options, hint, capsys):
    assert guarded(app, ["pareto", *options, "--peers"]) == 2
    err = capsys.readouterr().err
    assert "options: there are no peers to run beside the front" in err
    assert f"next: {hint}" in err


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


def test_without_time_no_point_is_in_parts_and_that_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text(TARGET)
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))
    target = ["pareto", f"{tmp_path}/train.py:make"]
    assert guarded(app, [*target, "--time-budget", "0"]) == 0
    assert "nothing is done in parts: the time budget is 0" in " ".join(capsys.readouterr().out.split())
    assert guarded(app, [*target, "--time-budget", "0", "--no-fission"]) == 0
    assert "in parts:" not in capsys.readouterr().out


def test_points_run_in_arenas_that_count_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(fronts, "FIRST", 2)
    monkeypatch.setattr(fronts, "LIMITS", ())
    out = tmp_path / "front.json"
    options = [
        "--size",
        "tiny",
        "--no-fission",
        "--iterations",
        "50",
        "--measure",
        "--arena",
        "--no-peers",
        "--json",
        str(out),
    ]
    result = CliRunner().invoke(app, ["pareto", "bert", *options])
    assert result.exit_code == 0, result.output
    front = json.loads(out.read_text())
    assert front["allocator"] == "arena"
    assert front["peers"] == []
    assert front["ahead"] is None
    run = [point for point in front["points"] if point["equal"] is not None]
    assert run
    assert all(point["equal"] for point in run)
    assert all(1 <= p["measured_memory_ratio"] / p["memory_ratio"] < 1.01 for p in run)


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        (["--arena"], "points of the front cannot run in arenas", "add --measure, or leave --arena out"),
        (
            ["--arena", "--measure"],
            "programs cannot run in an arena: there is no C++ compiler",
            "install g++ or clang++, or set CXX; or leave --arena out",
        ),
    ],
)
def test_arenas_that_cannot_be_are_refused(options, what, hint, tmp_path, no_compiler, capsys):
    (tmp_path / "train.py").write_text(TARGET)
    assert guarded(app, ["pareto", f"{tmp_path}/train.py:make", *options]) == 2
    err = capsys.readouterr().err
    assert f"options: {what}" in err
    assert f"next: {hint}" in err


def test_a_benchmark_in_arenas_needs_their_allocator(no_compiler, capsys):
    assert guarded(app, ["bench", "--workloads", "bert", "--size", "tiny", "--arena"]) == 2
    err = capsys.readouterr().err
    assert "options: programs cannot run in an arena: there is no C++ compiler" in err
    assert "next: install g++ or clang++, or set CXX; or leave --arena out" in err


def test_a_figure_that_is_predicted_has_no_arenas(capsys):
    assert guarded(app, ["bench", "--figure", "9", "--arena"]) == 2
    assert "options: a figure of the paper is predicted: nothing runs in an arena" in capsys.readouterr().err


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))
    arena_native.native.cache_clear()
    yield
    arena_native.native.cache_clear()


def test_what_is_wrong_with_the_cache_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text(TARGET)
    (tmp_path / "cache").write_text("no folder")
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))
    arguments = ["pareto", f"{tmp_path}/train.py:make", "--no-fission", "--iterations", "20"]
    assert guarded(app, arguments) == 0
    assert "note: " in capsys.readouterr().out
