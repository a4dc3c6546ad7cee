"""Where commands write: the standard output, what is no file, and what cannot be written."""

import json
import os
import subprocess
import sys

import pytest

from peakfold.cli.failures import guarded
from peakfold.cli.main import app

PROBLEM = "id,lower,upper,size\na,0,2,5\nb,1,3,8\n"
SOLUTION = ["id,lower,upper,size,offset", "a,0,2,5,", "b,1,3,8,"]


def run(*arguments):
    return guarded(app, [str(argument) for argument in arguments])


@pytest.fixture
def problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.csv").write_text(PROBLEM)
    return "p.csv"


def is_solution(text):
    return [line[: len(want)] for line, want in zip(text.splitlines(), SOLUTION, strict=True)] == SOLUTION


@pytest.mark.parametrize("where", [".", "", "/", "none/s.csv", "p.csv/s.csv", "circle"])
@pytest.mark.parametrize("with_json", [True, False])
def test_no_place_for_a_solution_is_a_fault_of_usage(where, with_json, problem, tmp_path, capsys):
    (tmp_path / "circle").symlink_to("circle")
    figures = ("--json", "figures.json") if with_json else ()
    assert run("plan", problem, "-o", where, *figures) == 2
    message = capsys.readouterr().err
    assert "the solution cannot be written" in message
    assert all(label in message for label in ("at: ", "expected: ", "got: ", "next: "))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "p.csv"]


@pytest.mark.parametrize("where", [".", "", "/", "none/j.json", "p.csv/j.json", "circle"])
@pytest.mark.parametrize("command", [("plan", "p.csv", "-o", "s.csv"), ("check", "p.csv", "p.csv")])
def test_no_place_for_the_figures_leaves_no_solution(command, where, problem, tmp_path, capsys):
    (tmp_path / "circle").symlink_to("circle")
    assert run(*command, "--json", where) == 2
    assert "the figures cannot be written" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "p.csv"]


def test_a_solution_on_the_standard_output(problem, tmp_path, capsys):
    assert run("plan", problem, "-o", "-") == 0
    captured = capsys.readouterr()
    assert is_solution(captured.out)
    assert captured.err.startswith("arena 13 bytes")
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_two_results_do_not_share_the_standard_output(problem, capsys):
    assert run("plan", problem, "-o", "-", "--json", "-") == 2
    captured = capsys.readouterr()
    assert "two results are to go to the standard output" in captured.err
    assert captured.out == ""


def test_nothing_is_written_where_nothing_fits(problem, tmp_path, capsys):
    (tmp_path / "s.csv").write_text("old")
    assert run("plan", problem, "-o", "s.csv", "--json", "-", "--capacity", 12) == 3
    assert json.loads(capsys.readouterr().out)["status"] == "infeasible"
    assert (tmp_path / "s.csv").read_text() == "old"


def test_a_solution_takes_the_place_of_a_links_target(problem, tmp_path):
    (tmp_path / "link").symlink_to("target")
    assert run("plan", problem, "-o", "link") == 0
    assert (tmp_path / "link").is_symlink()
    assert is_solution((tmp_path / "target").read_text())


def test_a_solution_goes_through_a_pipe(problem, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run("plan", problem, "-o", "pipe") == 0
        assert is_solution(os.read(reader, 1000).decode())
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize("to_file", [True, False])
def test_dev_stdout_is_the_standard_output(to_file, problem, tmp_path):
    command = [sys.executable, "-m", "peakfold", "plan", problem, "-o", "/dev/stdout"]
    with (tmp_path / "found").open("wb") as file:
        done = subprocess.run(command, stdout=file if to_file else subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0
    assert is_solution(((tmp_path / "found").read_bytes() if to_file else done.stdout).decode())
    assert done.stderr.startswith(b"arena 13 bytes")


@pytest.mark.parametrize("where", [".", "", "/"])
@pytest.mark.parametrize("command", ["generate", "derive", "reduce", "page"])
def test_no_place_for_rules_is_said_before_anything_runs(command, where, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("rules", command, "-o", where) == 2
    assert "the results cannot be written" in capsys.readouterr().err
