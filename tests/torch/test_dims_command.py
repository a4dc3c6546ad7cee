import json

import pytest

from peakfold.cli.failures import guarded
from peakfold.cli.main import app


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("bert", {"batch": 4, "sequence": 16, "vocabulary": 128, "heads": 2, "hidden": 32}),
        ("vit", {"batch": 4, "sequence": 17, "heads": 2, "classes": 10}),
        ("unet", {"batch": 2, "image rows": 32, "image columns": 32, "classes": 2}),
        ("resnet50", {"batch": 4, "image rows": 64}),
    ],
)
def test_axes_have_the_words_of_the_user(target, names, capsys):
    assert guarded(app, ["dims", target, "--size", "tiny", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    lengths = {axis["name"]: axis["length"] for axis in found["axes"]}
    assert len(lengths) == len(found["axes"])
    assert {name: lengths.get(name) for name in names} == names


def test_the_table_says_how_many_are_left_out(capsys):
    assert guarded(app, ["dims", "bert", "--size", "tiny", "--rows", "2"]) == 0
    printed = capsys.readouterr().out
    assert "axes of bert" in printed
    assert "smaller ones; --json lists all" in printed


def test_a_file(tmp_path):
    assert guarded(app, ["dims", "bert", "--size", "tiny", "--json", str(tmp_path / "a" / "dims.json")]) == 0
    assert json.loads((tmp_path / "a" / "dims.json").read_text())["target"] == "bert"


def test_an_unknown_target(capsys):
    assert guarded(app, ["dims", "bertt"]) == 2
    assert "did you mean 'bert'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "axis", "operator", "why"),
    [
        ("lstm", "sequence", "mkldnn_rnn_layer_backward", "has no rule"),
        ("rwkv", "sequence", "select", "picks places of it"),
        ("bert", "vocabulary", "_log_softmax", "needs all of it at once"),
        ("bert", "hidden", "native_layer_norm", "needs all of it at once"),
    ],
)
def test_where_an_axis_ends_is_said_and_why(target, axis, operator, why, capsys):
    assert guarded(app, ["dims", target, "--size", "tiny", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    (ends,) = (row["ends"] for row in found["axes"] if row["name"] == axis)
    assert (operator, why) in {(end["operator"], end["why"]) for end in ends}
    assert guarded(app, ["dims", target, "--size", "tiny"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{axis} ends where" in said
    assert f"{operator} {why}" in said
