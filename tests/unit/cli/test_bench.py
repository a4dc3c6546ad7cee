import json

import pytest

from peakfold.bench import runner
from peakfold.bench.rows import Results, Row
from peakfold.cli.failures import guarded
from peakfold.cli.main import app

EAGER = Row("bert", "eager", "", 100, 1.0, 1.0, 1.0, equal=True, max_error=0.0)
PLAN = Row("bert", "peakfold", "memory 50%", 50, 1.1, 0.5, 1.1, 50, 1.1, equal=True, max_error=0.0)


def run(*arguments):
    return guarded(app, ["bench", *(str(argument) for argument in arguments)])


@pytest.fixture
def found(monkeypatch):
    """What the runner answers, and what it was asked for."""
    answer = {"results": Results((EAGER, PLAN)), "asked": []}

    def ran(settings, progress):
        answer["asked"].append(settings)
        progress("bert memory", 0.0, "eager")
        return answer["results"]

    monkeypatch.setattr(runner, "run", ran)
    return answer


def test_every_option_reaches_the_runner(found):
    lists = ["--workloads", "bert,unet", "--peers", "selective", "--memory", "4GiB", "--latency", "1.2"]
    assert run(*lists, "--compile", "--size", "tiny", "--time-budget", 3, "--repeats", 7) == 0
    (settings,) = found["asked"]
    assert settings.workloads == ("bert", "unet")
    assert settings.peers == ("selective", "compile")
    assert (settings.memory, settings.latency) == (("4GiB",), (1.2,))
    assert (settings.size, settings.time_budget, settings.repeats) == ("tiny", 3.0, 7)


def test_json_on_stdout_and_tables_beside(found, capsys):
    assert run("--json", "-") == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["rows"]) == 2
    assert "peakfold memory 50%" in printed.err


def test_a_file_and_a_folder(found, tmp_path, capsys):
    assert run("--json", tmp_path / "one" / "b.json", "--out", tmp_path / "two") == 0
    assert (tmp_path / "one" / "b.json").read_bytes() == (tmp_path / "two" / "bench.json").read_bytes()
    assert "peakfold memory 50%" in capsys.readouterr().out


def test_an_interrupt_writes_what_is_there(found, tmp_path, capsys):
    found["results"] = Results((EAGER,), complete=False)
    assert run("--workloads", "bert,unet", "--json", tmp_path / "b.json") == 130
    assert json.loads((tmp_path / "b.json").read_text())["complete"] is False
    assert "bench: interrupted\n  got: 1 of 2 workloads begun; what is known is written" in (
        capsys.readouterr().err
    )


def test_a_program_that_is_not_equal_is_a_fault(found, capsys):
    wrong = Row("bert", "peakfold", "memory 50%", equal=False, max_error=0.5)
    found["results"] = Results((EAGER, wrong))
    assert run() == 5
    assert "bert, peakfold memory 50%, does not compute what eager does" in capsys.readouterr().err


def test_a_peer_that_is_not_equal_or_fails_is_none(found):
    found["results"] = Results(
        (EAGER, Row("bert", "accumulate-2", equal=False, max_error=0.5), Row("bert", "compile-0", error="no"))
    )
    assert run() == 0


def test_a_workload_that_fails(found, capsys):
    found["results"] = Results((Row("bert", "", error="the process was ended by SIGKILL"), EAGER))
    assert run() == 1
    assert "bench: failed: bert\n  got: the process was ended by SIGKILL" in capsys.readouterr().err


def test_what_cannot_be_read(capsys):
    assert run("--workloads", "brt") == 2
    assert "did you mean 'bert'?" in capsys.readouterr().err
