"""Each bad input of the command line: its text, its exit code, and no traceback."""

import errno
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.unit.report.synthetic import make_report

from peakfold.cli import calls
from peakfold.cli.failures import guarded
from peakfold.cli.main import app
from peakfold.errors import (
    CacheError,
    CaptureError,
    InfeasibleError,
    NotEqualError,
    PlanError,
    UsageError,
)
from peakfold.report.folder import write_folder
from peakfold.report.model import Equality


def run(*arguments):
    return guarded(app, [str(argument) for argument in arguments])


def failing(error):
    def optimize(chosen, request, progress):
        raise error

    return optimize


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimize"], "Missing argument 'TARGET'"),
        (["optimise", "bert"], "No such command 'optimise'"),
        (["optimize", "bert", "--size", "huge"], "'huge' is not one of 'tiny', 'cpu', 'paper'"),
        (
            ["optimize", "bert", "--optimizer", "lion"],
            "'lion' is not one of 'sgd', 'momentum', 'adam', 'adamw'",
        ),
        (["optimize", "bert", "--seed", "x"], "--seed"),
        (["optimize", "bert", "--memory", "4gigs"], "options: the memory budget cannot be read"),
        (["optimize", "bert", "--memory", "-1"], "options: the memory budget must be more than nothing"),
        (["optimize", "bert", "--memory", "0%"], "options: the memory budget must be more than nothing"),
        (["optimize", "bert", "--latency", "fast"], "options: the latency budget cannot be read"),
        (["optimize", "bert", "--time-budget", "-1"], "options: the time budget is negative"),
        (["optimize", "bert", "--iterations", "-1"], "options: the iteration count is negative"),
        (["optimize", "bert", "--rng", "dice"], "options: the random numbers cannot be had in this way"),
        (["optimize", "bert", "--device", "tpu"], "options: there is no such device"),
        (["optimize", "bert", "--device", "sim:nothing"], "estimate: there is no description of the device"),
        (["optimize", "bert", "--plan", "none.txt"], "plan: there is no such plan\n  at: none.txt"),
        (["apply", "bert", "none.txt"], "plan: there is no such plan\n  at: none.txt"),
        (["explain", "nowhere"], "report: there is no such folder\n  at: nowhere"),
        (["verify", "nowhere"], "report: there is no such folder\n  at: nowhere"),
    ],
)
def test_usage(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert "\n  at: " not in out


ERRORS = [
    (UsageError("target", "no such target"), 2),
    (PlanError("plan", "a plan for another graph"), 2),
    (CacheError("cost", "the cache is of an older version"), 2),
    (InfeasibleError("search", "no plan within 1.0 MB"), 3),
    (CaptureError("capture", "the model reads a tensor's value", where="model.py:7"), 4),
    (NotEqualError("verify", "a gradient differs"), 5),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])
def test_every_error_has_its_code_and_is_printed_whole(error, code, monkeypatch, capsys):
    monkeypatch.setattr(calls, "optimize", failing(error))
    assert run("optimize", "bert", "--json", "-") == code
    out, err = capsys.readouterr()
    assert err == f"{error}\n"
    assert out == ""


def test_a_device_that_is_not_there(monkeypatch, capsys):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("optimize", "bert", "--size", "tiny", "--device", "cuda") == 2
    assert "options: there is no CUDA device, or torch is built without CUDA" in capsys.readouterr().err


def test_a_target_that_is_not_there(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run("optimize", "nowhere.py:make") == 2
    assert "target: the file does not exist\n  at: nowhere.py" in capsys.readouterr().err


def test_a_fault_of_peakfold_is_short_and_says_how_to_see_more(monkeypatch, capsys):
    monkeypatch.delenv("PEAKFOLD_DEBUG", raising=False)
    monkeypatch.setattr(calls, "optimize", failing(KeyError("gone")))
    assert run("optimize", "bert") == 1
    err = capsys.readouterr().err
    assert err.startswith("internal error: KeyError: 'gone'\n  at: test_cli_errors.py:")
    assert "next: set PEAKFOLD_DEBUG=1 for the traceback" in err
    assert "Traceback" not in err


def test_a_traceback_is_had_by_asking(monkeypatch, capsys):
    monkeypatch.setenv("PEAKFOLD_DEBUG", "1")
    monkeypatch.setattr(calls, "optimize", failing(KeyError("gone")))
    assert run("optimize", "bert") == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interrupt_ends_with_130(monkeypatch, capsys):
    monkeypatch.setattr(calls, "optimize", failing(KeyboardInterrupt()))
    assert run("optimize", "bert") == 130
    assert capsys.readouterr().err == "interrupted: nothing was written\n"


def test_what_is_not_equal_is_shown_written_and_ends_with_5(monkeypatch, capsys, tmp_path):
    bad = replace(make_report(layers=2), equal=Equality(False, 0.25, 1e-9, "full", 3, False))
    monkeypatch.setattr(calls, "optimize", lambda chosen, request, progress: bad)
    assert run("optimize", "bert", "--out", tmp_path / "out") == 5
    out, err = capsys.readouterr()
    assert "NOT equal over 3 steps" in out
    assert "expected: an error of at most 1.0e-09\n  got: 2.5e-01" in err
    assert (tmp_path / "out" / "report.json").is_file()


def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(monkeypatch, capsys, tmp_path):
    (tmp_path / "out").write_text("a file")
    monkeypatch.setattr(calls, "optimize", failing(AssertionError("it ran")))
    assert run("optimize", "bert", "--out", tmp_path / "out") == 2
    assert "report: the results cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the report cannot be read: it is not JSON"),
        ("{}", "the report cannot be read: it was written by another version"),
        ('{"format": 1}', "the report cannot be read: report.target is missing"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "verify"])
def test_a_corrupt_report(command, text, message, capsys, tmp_path):
    write_folder(make_report(layers=2), tmp_path)
    (tmp_path / "report.json").write_text(text)
    assert run(command, tmp_path) == 2
    err = capsys.readouterr().err
    assert message in err
    assert str(tmp_path / "report.json") in err


def test_a_folder_of_something_else(capsys, tmp_path):
    (tmp_path / "a.txt").write_text("")
    assert run("explain", tmp_path) == 2
    assert "the folder holds no report" in capsys.readouterr().err


def test_a_plan_that_is_no_text(capsys, tmp_path):
    (tmp_path / "plan.txt").write_bytes(b"\xff\xfe")
    assert run("apply", "bert", tmp_path / "plan.txt") == 2
    assert "plan: the plan cannot be read" in capsys.readouterr().err


def test_a_closed_pipe_is_no_error(tmp_path):
    write_folder(make_report(), tmp_path)
    code = "from peakfold.cli.main import main; main()"
    command = f"{sys.executable} -c '{code}' explain {tmp_path} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("seed", ["-1", str(2**63)])
@pytest.mark.parametrize("command", ["optimize", "estimate"])
def test_a_seed_that_is_out_of_range(command, seed, capsys):
    assert run(command, "bert", "--seed", seed) == 2
    err = capsys.readouterr().err
    assert "--seed" in err
    assert "internal error" not in err


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        ({"target": "unet"}, "verify: the options of the program are damaged", 2),
        (
            {"target": "unet", "seed": "x", "device": "cpu", "rng": "eager"},
            "verify: the options of the program are damaged",
            2,
        ),
        (
            {"target": "unet", "seed": "0", "device": "sim:a100", "rng": "eager"},
            "verify: the program is for a simulated device, and cannot be run",
            2,
        ),
        ({}, "verify: the folder does not say how its program is built", 2),
    ],
)
def test_verify_of_a_folder_whose_options_do_not_do(options, message, code, tmp_path, capsys):
    write_folder(replace(make_report(), request=options), tmp_path / "out")
    assert run("verify", tmp_path / "out") == code
    err = capsys.readouterr().err
    assert err.startswith(message)
    assert "  next: run `peakfold optimize TARGET --out DIR`" in err


def test_a_report_of_lists_in_lists(tmp_path, capsys):
    write_folder(make_report(), tmp_path / "out")
    (tmp_path / "out" / "report.json").write_text("[" * 100_000)
    assert run("explain", tmp_path / "out") == 2
    assert "report: the report cannot be read: it is not a report" in capsys.readouterr().err


def test_what_the_users_code_prints_stays_out_of_the_json(monkeypatch, capsys):
    def optimize(chosen, request, progress):
        print("loading")
        return make_report()

    monkeypatch.setattr(calls, "optimize", optimize)
    assert run("optimize", "bert", "--json", "-") == 0
    out, err = capsys.readouterr()
    assert out.startswith("{")
    assert "loading" in err


def test_a_full_disk_behind_stdout(monkeypatch, capsys):
    error = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(calls, "optimize", failing(error))
    assert run("optimize", "bert") == 2
    assert capsys.readouterr().err == (
        "output: the results cannot be written\n"
        "  expected: room for them\n"
        "  got: No space left on device\n"
        "  next: make room, or write elsewhere\n"
    )
