"""What a user reads when a target is wrong: exit code 2, the user's own file and line, never a traceback."""

from pathlib import Path

import pytest
import torch

from peakfold.errors import UsageError
from peakfold.workloads import Target, build, load_target

GOOD = """
import torch
from torch import nn

def make(size="cpu", batch=2):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, lambda model, x: model(x).mean(), optimizer, [torch.randn(batch, 3)]

def keyed():
    return nn.Linear(3, 1), lambda model, *, x: model(x).mean(), None, {"x": torch.ones(2, 3)}

def wrapped():
    from peakfold.workloads import Target
    return Target(*keyed())

constant = 3
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def writer(source: str, name: str = "step.py") -> Path:
        path = Path(name)
        path.write_text(source)
        return path

    return writer


def text_of(target: str, **options: object) -> str:
    with pytest.raises(UsageError) as error:
        load_target(target, **options)
    assert error.value.exit_code == 2
    assert "Traceback" not in str(error.value)
    return str(error.value)


def test_file_with_a_function(write):
    write(GOOD)
    target = load_target("step.py:make", batch=5, size=None)
    assert isinstance(target.batch, tuple)
    assert target.batch[0].shape == (5, 3)
    assert target.loss().dim() == 0
    assert load_target("step.py:keyed").loss().dim() == 0
    assert isinstance(load_target("step.py:wrapped"), Target)


def test_same_seed_same_target(write):
    write(GOOD)
    one, two, other = (load_target("step.py:make", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.loss(), two.loss())
    assert not torch.equal(one.loss(), other.loss())


def test_file_imports_its_neighbour(write):
    write("from torch import nn\nmodel = nn.Linear(3, 1)\n", "neighbour_of_step.py")
    write("import neighbour_of_step as n\nimport torch\ndef make():\n    return n.model, print, None, ()\n")
    assert load_target("step.py:make").model.in_features == 3


def test_workload_by_name():
    target = load_target("bert", size="tiny", batch=2, optimizer=None)
    assert target.batch[0].shape == build("bert", "tiny", batch=2).batch[0].shape


def test_unknown_name():
    assert text_of("resnet5") == (
        "target: unknown target\n"
        "  expected: path/to/file.py:function, or a workload: resnet50, bert, bert_sdpa, vit, unet, unetpp, "
        "gptneo, btlm, t5, swin, convnext, segformer, whisper, mamba, rwkv, moe, moe_dense, mixtral, "
        "densenet, lstm, diffusion, llama, gpt2, attention\n"
        "  got: 'resnet5'\n"
        "  next: did you mean 'resnet50'?"
    )


def test_missing_function_name(write):
    write(GOOD)
    assert text_of("step.py") == (
        "target: the function is missing\n  expected: path/to/file.py:function\n"
        "  got: 'step.py'\n  next: write step.py:function"
    )


def test_missing_file():
    assert text_of("no/such.py:make") == (
        "target: the file does not exist\n  at: no/such.py\n  expected: path/to/file.py:function\n"
        "  got: no such file\n  next: check the path"
    )


def test_not_python_source(write):
    write("x", "step.txt")
    assert text_of("step.txt:make") == (
        "target: the file is not Python source\n  at: step.txt\n  expected: a .py file\n  got: '.txt'\n"
        "  next: put the function into a file whose name ends in .py"
    )


def test_fails_on_import(write):
    write("import torch\n\nx = {}['key']\n")
    assert text_of("step.py:make") == (
        "target: the file fails on import\n"
        "  at: step.py:3\n"
        "  expected: Python that runs\n"
        "  got: KeyError: 'key'\n"
        "  next: run the file with Python to see the whole traceback"
    )


def test_syntax_error(write):
    write("x = 1\ndef make(:\n")
    text = text_of("step.py:make")
    assert text.startswith("target: the file fails on import\n  at: step.py:2\n  expected: ")
    assert "\n  got: SyntaxError: " in text


def test_exits_on_import(write):
    write("import sys\nsys.exit(3)\n")
    assert "at: step.py:2\n  expected: Python that runs\n  got: SystemExit: 3" in text_of("step.py:make")


def test_missing_module(write):
    write("import no_such_module\n")
    text = text_of("step.py:make")
    assert "at: step.py:1\n" in text
    assert "\n  got: ModuleNotFoundError: No module named 'no_such_module'" in text


def test_missing_function(write):
    write(GOOD)
    assert text_of("step.py:build") == (
        "target: the file has no function 'build'\n"
        "  at: step.py\n"
        "  expected: one of: keyed, make, wrapped\n"
        "  got: nothing of this name\n"
        "  next: name one of these, or define it"
    )
    assert "got: an object of type int" in text_of("step.py:constant")


def test_function_fails(write):
    write("import torch\ndef inner():\n    torch.ones(2) @ torch.ones(3)\ndef make():\n    inner()\n")
    text = text_of("step.py:make")
    assert text.startswith("target: make() failed\n  at: step.py:3\n  expected: ")
    assert "\n  got: RuntimeError: " in text


def test_function_does_not_take_the_option(write):
    write(GOOD)
    assert text_of("step.py:make", optimizer="adam") == (
        "target: the function does not take these options\n"
        "  at: step.py:make\n"
        "  expected: a function that can be called as make(optimizer)\n"
        "  got: got an unexpected keyword argument 'optimizer'\n"
        "  next: give the function a parameter optimizer, or leave the option away"
    )


def test_function_needs_what_no_option_gives(write):
    write("def make(width): pass")
    assert text_of("step.py:make").splitlines()[-1] == (
        "  next: give the parameter a default, or leave the option away"
    )


@pytest.mark.parametrize(
    ("returned", "expected", "got"),
    [
        ("None", "(model, loss_fn, optimizer, batch)", "an object of type NoneType"),
        ("1, 2, 3", "(model, loss_fn, optimizer, batch)", "3 values"),
        ("3, print, None, ()", "a torch.nn.Module", "an object of type int as model"),
        (
            "m, None, torch.optim.SGD(m.parameters()), ()",
            "a loss to train with, or no optimizer",
            "an optimizer without loss_fn",
        ),
        ("m, 3, None, ()", "a function loss_fn(model, *batch)", "an object of type int as loss_fn"),
        ("m, print, 'sgd', ()", "a torch.optim.Optimizer or None", "an object of type str as optimizer"),
        (
            "m, print, None, torch.ones(2)",
            "a tuple, a list or a dict, the arguments of loss_fn",
            "an object of type Tensor as batch",
        ),
    ],
)
def test_returns_something_else(write, returned, expected, got):
    write(f"import torch\nm = torch.nn.Linear(1, 1)\ndef make():\n    return {returned}\n")
    assert text_of("step.py:make") == (
        "target: the function returns something else\n"
        f"  at: step.py:make\n  expected: {expected}\n  got: {got}\n"
        "  next: have it return these; docs/cli.md shows one"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"size": "huge"},
            "target: unknown size\n  expected: tiny, cpu, paper\n  got: 'huge'",
        ),
        (
            {"optimizer": "adamww"},
            "target: unknown optimizer\n  expected: sgd, momentum, adam, adamw\n  got: 'adamww'\n"
            "  next: did you mean 'adamw'?",
        ),
        (
            {"attention": "sdpa"},
            "target: unet has no such attention\n  expected: eager\n  got: 'sdpa'",
        ),
        ({"dropout": 1.0}, "target: the dropout is out of range\n  expected: 0 <= dropout < 1\n  got: 1.0"),
        ({"batch": 0}, "target: the batch is too small\n  expected: at least 1 sample\n  got: 0"),
    ],
)
def test_options_of_a_workload(options, text):
    assert text_of("unet", **options) == text


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_device_that_is_not_there(device):
    text = text_of("unet", size="tiny", device=device)
    assert text.startswith(
        f"target: the device is not there\n  at: {device}\n  expected: cpu, meta or cuda\n  got: "
    )


def test_resnet_has_no_dropout():
    assert text_of("resnet50", size="tiny", dropout=0.1) == (
        "target: resnet50 has no dropout\n  expected: dropout 0\n  got: 0.1"
    )
