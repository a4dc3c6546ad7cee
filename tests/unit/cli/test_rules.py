"""``peakfold rules``: what it writes, prints and refuses."""

import json
from pathlib import Path

import pytest

from peakfold.cli.failures import guarded
from peakfold.cli.main import app
from peakfold.graph.rule import parse_rules


def test_generate_writes_a_file_that_is_read_back(tmp_path: Path) -> None:
    out, figures = tmp_path / "my.rules", tmp_path / "figures.json"
    arguments = ["rules", "generate", "--operators", "relu,transpose", "--size", "2"]
    assert guarded(app, [*arguments, "-o", str(out), "--json", str(figures)]) == 0
    rules = parse_rules(out.read_text())
    assert len(rules) == json.loads(figures.read_text())["basis"] == 3
    assert not (tmp_path / "my.rules.part").exists()


def test_check_says_which_rules_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, figures = tmp_path / "some.rules", tmp_path / "figures.json"
    file.write_text(
        "peakfold rules 1\n"
        "good: relu(relu(a)) => relu(a)\n"
        "bad: sub(a, b) => sub(b, a)\n"
        "half: relu(scale[by=s](a)) => scale[by=s](relu(a))\n"
    )
    assert guarded(app, ["rules", "check", str(file), "--json", str(figures)]) == 5
    found = json.loads(figures.read_text())
    assert {key: found[key] for key in ("rules", "sound", "unsound", "unlabelled")} == {
        "rules": 3,
        "sound": 1,
        "unsound": 2,
        "unlabelled": 0,
    }
    said = capsys.readouterr()
    assert "bad is wrong" in said.out
    assert "holds when positive(s)" in said.out
    assert "2 of 3 rules are wrong" in said.err


def test_a_malformed_file_has_its_line_and_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "some.rules"
    file.write_text("peakfold rules 1\nr: add(a, => a\n")
    assert guarded(app, ["rules", "check", str(file)]) == 2
    assert "line 2, column 11" in capsys.readouterr().err


def test_show_prints_what_a_condition_excludes(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(app, ["rules", "show", "concat_of_sums_0"]) == 0
    said = capsys.readouterr().out
    assert "proof: index" in said
    assert "without same_shape(a, b): a=" in said


def test_show_suggests_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(app, ["rules", "show", "concat_of_sum"]) == 2
    assert "concat_of_sums_0" in capsys.readouterr().err


def test_a_book_that_cannot_be_written_is_a_fault_of_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    for place in ("taken", "taken/inside"):
        assert guarded(app, ["rules", "make", "-o", str(tmp_path / place)]) == 2
        said = capsys.readouterr().err
        assert "the book cannot be written" in said
        assert all(word in said for word in ("at: ", "expected: ", "got: ", "next: "))
