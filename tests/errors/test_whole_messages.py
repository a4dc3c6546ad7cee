"""Every error of what a user gives says what was expected, what was got and what to do next."""

import ast
from pathlib import Path

import pytest

import peakfold

PACKAGE = Path(peakfold.__file__).parent
FILES = ("workloads/load.py", "cli/calls.py", "pipeline/request.py", "pipeline/given.py", "pipeline/anew.py")
PARTS = {"stage", "what", "expected", "got", "hint"}


def errors(path):
    for node in ast.walk(ast.parse(path.read_text())):
        name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if name.endswith("Error") and node.keywords:
            yield node.lineno, {one.arg for one in node.keywords}


@pytest.mark.parametrize("name", FILES)
def test_no_part_of_a_message_is_left_out(name):
    assert [(line, PARTS - given) for line, given in errors(PACKAGE / name) if PARTS - given] == []


def test_what_is_left_out_is_seen(tmp_path):
    (tmp_path / "x.py").write_text("UsageError(stage='a', what='b', got='c')")
    assert list(errors(tmp_path / "x.py")) == [(1, {"stage", "what", "got"})]
