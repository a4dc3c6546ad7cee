"""``peakfold rules``: what it writes, prints and refuses."""

import json
from pathlib import Path

import pytest

from peakfold.cli.failures import guarded
from peakfold.cli.main import app
from peakfold.errors import CacheError
from peakfold.graph.rule import parse_rules
from peakfold.graph.substitution import generate as generator
from peakfold.graph.substitution.checkpoint import Checkpoint
from peakfold.graph.substitution.generate import Request


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
    assert f"at: {file}, line 2, column 11" in capsys.readouterr().err
    other = tmp_path / "some.json"
    other.write_text('{"rules": [1,')
    assert guarded(app, ["rules", "check", str(other)]) == 2
    said = capsys.readouterr().err
    assert f"at: {other}" in said
    assert "line 1 column 14" in said


@pytest.mark.parametrize(
    ("rule", "condition"),
    [
        ("sum[axis=0](a) => sum[axis=1](a)", "one(a, 0), one(a, 1)"),
        ("exp(a) => exp(sum[axis=0](a))", "one(a, 0)"),
        ("mul(sum[axis=0](a), b) => sum[axis=0](mul(a, b))", "same_shape(a, b), one(a, 0)"),
        ("div(mul(a, b), b) => a", "same_shape(a, b)"),
        ("concat[axis=0](a, b) => concat[axis=1](a, b)", None),
    ],
)
def test_legal_sides_of_different_shapes_are_wrong(
    rule: str, condition: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.rules"
    file.write_text(f"peakfold rules 1\nr: {rule}\n")
    assert guarded(app, ["rules", "check", str(file)]) == 5
    said = capsys.readouterr().out
    assert "r is wrong" in said
    assert "the sides have shapes" in said
    assert "sound 0, unsound 1" in said
    offered = [line.removeprefix("  holds when ") for line in said.splitlines() if "holds when" in line]
    assert offered == ([] if condition is None else [condition])
    if condition is not None:
        file.write_text(f"peakfold rules 1\nr: {rule} when {condition}\n")
        assert guarded(app, ["rules", "check", str(file)]) == 0


def test_a_certificate_that_derives_nothing_is_said_beside_what_proves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.rules"
    file.write_text("peakfold rules 1\nr: neg(neg(neg(a))) => neg(a) proof axioms from nowhere\n")
    assert guarded(app, ["rules", "check", str(file)]) == 0
    assert "r claims a proof by axioms from nowhere; it has one by index" in capsys.readouterr().out


def test_what_is_proved_is_not_undecided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "some.rules"
    file.write_text("peakfold rules 1\nr: log(mul(exp(a), exp(b))) => add(a, b)\n")
    assert guarded(app, ["rules", "check", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "rules 1, basis 1, sound 1, unsound 0, undecided 0, unlabelled 0"
    ]


def test_of_many_wrong_rules_it_is_said_that_there_are_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.rules"
    file.write_text("peakfold rules 1\n" + "".join(f"r{n}: neg(a) => a\n" for n in range(14)))
    assert guarded(app, ["rules", "check", str(file)]) == 5
    assert "r11 and 2 more\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("foo(a => a", "')' is missing"),
        ("ewadd(a, b)", "a rule has two sides for each output"),
        ("ewadd(a, b) => a => b", "a rule has two sides for each output"),
        ("foo(a) => a", "there is no operator foo"),
        ("ewadd(a, b, c) => a", "add has 3 operands"),
        ("split[ax=0](a).0 => a", "a split of what was not joined"),
        ("relu(x) => relu(relu(x))", "two rules have one number"),
    ],
)
def test_a_malformed_rule_of_tasos_has_its_line_and_column(
    rule: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.json"
    good = '{"id": 0, "rule": "relu(relu(x)) => relu(x)"}'
    bad = json.dumps({"id": 0 if "number" in what else 1, "rule": rule})
    file.write_text(f'{{"rules": [\n{good},\n{bad}\n]}}')
    assert guarded(app, ["rules", "check", str(file)]) == 2
    said = capsys.readouterr().err
    assert f"rules: {what}\n  at: {file}, line 3, column 19: taso_" in said
    assert "next: docs/rules.md" in said


@pytest.mark.parametrize(
    "text", ["[]", '{"rules": 1}', '{"rules": [7]}', '{"rules": [{"id": 1, "rule": 2}]}']
)
def test_what_is_no_file_of_tasos_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.json"
    file.write_text(text)
    assert guarded(app, ["rules", "check", str(file)]) == 2
    said = capsys.readouterr().err
    assert "this is no file of TASO's rules" in said
    assert "next: docs/rules.md" in said


def test_undecided_rules_are_counted_with_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.rules"
    file.write_text("peakfold rules 1\nmaybe: log(mul(exp(a), a)) => add(a, log(a))\n")
    assert guarded(app, ["rules", "check", str(file)]) == 0
    assert "sound 0, unsound 0, undecided 1, unlabelled 0" in capsys.readouterr().out


def test_an_interrupted_command_says_what_it_goes_on_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(request: Request, part: Path, progress: object) -> None:
        Checkpoint(part, request).save(rules="")
        raise KeyboardInterrupt

    monkeypatch.setattr(generator, "generate", interrupted)
    file = tmp_path / "some.rules"
    assert guarded(app, ["rules", "generate", "-o", str(file)]) == 130
    assert f"{file}.part keeps what was looked at" in capsys.readouterr().err


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


def test_rules_are_generated_into_a_folder_that_is_made(tmp_path: Path) -> None:
    file = tmp_path / "new" / "some.rules"
    assert guarded(app, ["rules", "generate", "--operators", "neg", "--size", "2", "-o", str(file)]) == 0
    assert "neg(neg(a)) => a" in file.read_text()
    assert [one.name for one in file.parent.iterdir()] == ["some.rules"]


@pytest.mark.parametrize(
    ("name", "content", "got"),
    [
        ("none.rules", None, "No such file or directory"),
        ("bytes.rules", b"peakfold rules 1\n\xff", "bytes that are no UTF-8 from byte 17 on"),
        ("", None, "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_said_to_be(
    name: str, content: bytes | None, got: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert guarded(app, ["rules", "check", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("rules: the file cannot be read\n")
    assert f"got: {got}\n" in said
    assert all(word in said for word in ("at: ", "expected: ", "next: "))


def test_what_a_run_would_go_on_from_names_its_place_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    kept = Checkpoint(tmp_path / "taken" / "some.rules.part", Request(("neg",), 1))
    with pytest.raises(CacheError) as caught:
        kept.save(rules=[])
    assert "what an interrupted run would go on from cannot be written" in str(caught.value)
    assert str(tmp_path / "taken" / "some.rules.part") in str(caught.value)
