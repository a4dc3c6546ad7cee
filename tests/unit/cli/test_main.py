import json
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.unit.report.synthetic import make_report

import peakfold
from peakfold.cli import calls
from peakfold.cli.failures import guarded
from peakfold.cli.main import app
from peakfold.errors import InfeasibleError, PeakfoldError, UsageError
from peakfold.report.model import Eager, Estimate, Texts


@pytest.fixture(scope="module")
def result():
    return make_report(layers=2)


@pytest.fixture
def asked(monkeypatch, result):
    """What the pipeline is asked for; it answers with a report that was made by hand."""
    seen = []

    def optimize(chosen, request, progress):
        progress("search", 0.5, "half way")
        seen.append((dict(chosen), request))
        return replace(result, target=chosen["target"])

    def estimate(chosen, progress):
        seen.append((dict(chosen), None))
        return Estimate(chosen["target"], chosen["device"], Eager(10_000_000), {"parameters": 10_000_000})

    monkeypatch.setattr(calls, "optimize", optimize)
    monkeypatch.setattr(calls, "estimate", estimate)
    return seen


def run(*arguments):
    return guarded(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("failure", [InfeasibleError, UsageError, KeyboardInterrupt, ValueError])
def test_what_is_refused_leaves_no_folder_behind(there, failure, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise failure(stage="search", what="no") if issubclass(failure, PeakfoldError) else failure

    monkeypatch.setattr(calls, "optimize", refuse)
    out = tmp_path / "a" / "b"
    if there:
        out.mkdir(parents=True)
    assert run("optimize", "bert", "--out", out, "--json", tmp_path / "c" / "d.json") != 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == (["a", "b"] if there else [])


def test_a_folder_that_cannot_be_made_is_said_first_and_leaves_nothing(asked, tmp_path):
    (tmp_path / "file").write_text("")
    assert run("optimize", "bert", "--out", tmp_path / "file" / "out") == 2
    assert asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_every_option_reaches_the_pipeline(asked, tmp_path, capsys):
    plan = tmp_path / "plan.txt"
    plan.write_text("update each parameter early\n")
    limits = [
        "--memory",
        "40%",
        "--latency",
        "1.1",
        "--time-budget",
        "5",
        "--iterations",
        "7",
        "--rng",
        "eager",
    ]
    target = [
        "--size",
        "tiny",
        "--optimizer",
        "adamw",
        "--device",
        "sim:rtx3090",
        "--seed",
        "3",
        "--plan",
        plan,
    ]
    assert run("optimize", "bert", *limits, *target) == 0
    chosen, request = asked[0]
    assert chosen == {
        "target": "bert",
        "size": "tiny",
        "optimizer": "adamw",
        "device": "sim:rtx3090",
        "seed": "3",
        "rng": "eager",
    }
    assert (request.memory.share, request.latency, request.time_budget, request.iterations) == (
        0.4,
        1.1,
        5,
        7,
    )
    assert (request.seed, request.device, request.name) == (3, "sim:rtx3090", "bert")
    assert request.plan == "update each parameter early\n"
    assert "peakfold bert" in capsys.readouterr().out


def test_json_to_stdout_is_all_that_stdout_gets(asked, capsys):
    assert run("optimize", "bert", "--json", "-") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["target"] == "bert"
    assert "peakfold bert" in err
    assert "search: half way" in err


def test_json_to_a_file(asked, tmp_path, capsys):
    assert run("optimize", "bert", "--json", tmp_path / "new" / "out.json") == 0
    assert json.loads((tmp_path / "new" / "out.json").read_text())["request"]["target"] == "bert"
    assert "peakfold bert" in capsys.readouterr().out


def test_estimate(asked, capsys):
    assert run("estimate", "vit", "--json", "-") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["eager"] == {"peak_bytes": 10_000_000, "cpu_seconds": None, "measured": False}
    assert json.loads(out)["components"] == {"parameters": 10_000_000}
    assert "peakfold estimate vit" in err


def test_a_result_is_written_explained_and_verified(asked, result, tmp_path, capsys):
    out = tmp_path / "out"
    assert run("optimize", "file.py:make", "--memory", "85%", "--seed", "4", "--out", out) == 0
    assert (out / "step.py").read_text() == result.texts.source
    assert pickle.loads((out / "memory_snapshot.pickle").read_bytes())["segments"]
    assert f"written to {out}" in capsys.readouterr().out.replace("\n", "")

    assert run("explain", out) == 0
    text = capsys.readouterr().out
    assert "the predicted peak is 19.9 MB, while layers.1.mm_backward" in text
    assert "could be computed again instead of being kept" in text
    assert "layers.0.relu" in text

    assert run("verify", out) == 0
    chosen, request = asked[-1]
    assert chosen == {"target": "file.py:make", "device": "cpu", "seed": "4", "rng": "eager"}
    assert (request.plan, request.verify) == (result.texts.plan, True)
    assert "every bit over 3 steps" in capsys.readouterr().out


def test_apply_takes_a_plan_and_no_search(asked, tmp_path):
    plan = tmp_path / "plan.txt"
    plan.write_text("by hand\n")
    assert run("apply", "bert", plan, "--size", "tiny") == 0
    assert (asked[0][1].plan, asked[0][1].iterations, asked[0][1].memory) == ("by hand\n", 0, None)


def test_demo_writes_one_page_and_a_folder_for_each_model(asked, tmp_path, capsys):
    out = tmp_path / "demo"
    assert run("demo", "--out", out, "--size", "tiny") == 0
    assert [chosen["target"] for chosen, _ in asked] == ["unet", "bert"]
    assert {request.memory.share for _, request in asked} == {0.5}
    page = (out / "report.html").read_text()
    assert 'href="#report-1">unet' in page
    assert 'href="#report-2">bert' in page
    assert [one["target"] for one in json.loads((out / "report.json").read_text())["reports"]] == [
        "unet",
        "bert",
    ]
    assert (out / "unet" / "report.html").is_file()
    assert run("explain", out / "bert") == 0
    out_text = capsys.readouterr()
    assert "Peak memory and time against eager" in out_text.out
    assert "unet search: half way" in out_text.err


def test_a_report_from_python_cannot_be_verified_from_the_folder(asked, result, tmp_path, capsys):
    from peakfold.report.folder import write_folder

    write_folder(result, tmp_path)
    assert run("verify", tmp_path) == 2
    assert "the folder does not say how its program is built" in capsys.readouterr().err


def test_version_and_help(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("peakfold ")
    assert run("optimize", "--help") == 0
    text = capsys.readouterr().out
    for option in (
        "--size",
        "--memory",
        "--latency",
        "--time-budget",
        "--iterations",
        "--device",
        "--optimizer",
    ):
        assert option in text
    for option in ("--rng", "--seed", "--plan", "--out", "--json"):
        assert option in text


def test_the_texts_of_a_report_are_files_of_their_own(result):
    assert replace(result, texts=Texts()) != result


GRAPH = """peakfold graph 1
device cpu

inputs
  %0 x : f32[4] batch

nodes
  %1 exp = aten.exp.default(%x) : f32[4]

outputs
  y = %exp
"""


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"graph.txt": GRAPH}, "legal: 1 nodes, 1 inputs, 0 state"),
        (
            {"graph.txt": GRAPH, "plan.txt": "peakfold plan 1\nreuse nothing\n"},
            "legal: 1 steps, 0 results computed again",
        ),
        ({"step.py": "def step(tensors, scalars):\n    return ()\n"}, "legal: a program of 2 lines"),
    ],
)
def test_check_accepts_what_is_dumped(files, said, tmp_path, capsys):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert guarded(app, ["check", *(str(tmp_path / name) for name in files)]) == 0
    assert capsys.readouterr().out == f"{said}\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("graph.txt", "hello\n", "peakfold graph 1"),
        ("step.py", "def (", "check: the program is not Python"),
        ("step.py", "x = 1\n", "check: the program has no step"),
        ("problem.csv", "", "check: the solution is missing"),
        ("none.txt", None, "check: the file cannot be read"),
    ],
)
def test_check_refuses_what_is_not_legal(name, text, message, tmp_path, capsys):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert guarded(app, ["check", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "peakfold", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"peakfold {peakfold.__version__}\n")


@pytest.mark.parametrize(("given", "again"), [((), False), (("--verify", "again"), True)])
def test_a_program_that_was_proved_before_is_proved_again_when_asked(asked, given, again):
    assert run("optimize", "bert", *given) == 0
    ((chosen, request),) = asked
    assert (request.verify, request.again) == (True, again)
    assert "verify" not in chosen
