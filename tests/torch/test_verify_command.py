"""``peakfold verify DIR`` runs the program that lies in the folder, not one made anew from its plan."""

import pytest

from peakfold.cli.failures import guarded
from peakfold.cli.main import app

TARGET = """
import torch

def make():
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, lambda model, x: model(x).square().mean(), optimizer, (torch.randn(3, 6),)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))
    target, out = tmp_path / "train.py", tmp_path / "out"
    target.write_text(TARGET)
    assert guarded(app, ["optimize", f"{target}:make", "--iterations", "0", "--out", str(out)]) == 0
    return out


def test_a_program_that_was_edited(folder, capfd):
    path = folder / "step.py"
    whole = path.read_text()
    for old, new, code, words in (
        ("gelu(v", "gelu(-1.0 * v", 5, "does not compute what the original does"),
        ("gelu(v", "glue(v", 4, "NameError: name 'glue' is not defined"),
        ("gelu(v", "gelu()(v", 4, "RuntimeError"),
        ("gelu(v", "1 / 0 + gelu(v", 4, "ZeroDivisionError: division by zero"),
        ("def step(", "def stop(", 2, "no function step"),
        ("torch.ops.aten.gelu.default", "torch.ops.aten.glue.default", 2, "AttributeError"),
    ):
        assert old in whole
        path.write_text(whole.replace(old, new, 1))
        capfd.readouterr()
        assert guarded(app, ["verify", str(folder)]) == code, new
        said = capfd.readouterr().err
        assert words in " ".join(said.split())
        assert ("if step.py, or what the target returns, was changed since" in " ".join(said.split())) == (
            code in (4, 5)
        )
        assert "without peakfold" not in said
        assert "Traceback" not in said
