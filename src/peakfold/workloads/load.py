"""Loads a target from the command line: a workload's name, or a function in a user's file."""

import difflib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict, Unpack

import torch
from torch import nn

from peakfold.errors import UsageError
from peakfold.workloads.build import BEYOND_NAMES, NAMES, build
from peakfold.workloads.target import Target

_FOUR = "(model, loss_fn, optimizer, batch)"


class Options(TypedDict, total=False):
    """What ``build`` takes besides name and seed; None means not given."""

    size: str | None
    optimizer: str | None
    dropout: float | None
    attention: str | None
    device: str | None
    batch: int | None
    inference: bool | None
    dtype: torch.dtype | None


def load_target(target: str, *, seed: int = 0, **options: Unpack[Options]) -> Target:
    """The target that a user names.

    Args:
        target: a workload's name, or ``path/to/file.py:function``. The function returns
            (model, loss_fn, optimizer or None, batch) or a ``Target``; loss_fn is None for inference. Its
            file's folder is importable, as it is for a script.
        seed: torch's seed for the weights and the batch.
        options: arguments of ``build``. A function in a file is called with those that are given, and
            must have parameters of their names.

    Raises:
        UsageError: the name is unknown, the file or the function is missing, fails, or returns something
            else. It says the file and the line of the user's own code.
    """
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    path, colon, function = target.rpartition(":")
    if target in (*NAMES, *BEYOND_NAMES):
        return build(target, seed=seed, **given)
    if not colon or not path or not function:
        raise _unknown(target)
    file = Path(path)
    if not file.is_file():
        raise UsageError(
            stage="target",
            what="the file does not exist",
            where=path,
            expected="path/to/file.py:function",
            got="no such file",
            hint="check the path",
        )
    make = _function(_imported(file), file, function)
    _check_options(make, given, f"{path}:{function}")
    with _user_code(file, f"{function}() failed"), torch.random.fork_rng():
        torch.manual_seed(seed)
        result = make(**given)
    return _as_target(result, f"{path}:{function}")


def _unknown(target: str) -> UsageError:
    if target.endswith(".py"):
        return UsageError(
            stage="target",
            what="the function is missing",
            expected="path/to/file.py:function",
            got=repr(target),
            hint=f"write {target}:function",
        )
    close = difflib.get_close_matches(target, (*NAMES, *BEYOND_NAMES), n=1)
    return UsageError(
        stage="target",
        what="unknown target",
        expected=f"path/to/file.py:function, or a workload: {', '.join((*NAMES, *BEYOND_NAMES))}",
        got=repr(target),
        hint=f"did you mean {close[0]!r}?" if close else "name a workload, or a file and its function",
    )


def _imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_peakfold_target_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(
            stage="target",
            what="the file is not Python source",
            where=str(file),
            expected="a .py file",
            got=repr(file.suffix),
            hint="put the function into a file whose name ends in .py",
        )
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[spec.name] = module  # dataclasses and pickle look a class's module up
    with _user_code(file, "the file fails on import"):
        spec.loader.exec_module(module)
    return module


def _function(module: ModuleType, file: Path, name: str) -> Callable[..., object]:
    found = getattr(module, name, None)
    if callable(found):
        make: Callable[..., object] = found
        return make
    functions = sorted(
        key
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    )
    raise UsageError(
        stage="target",
        what=f"the file has no function {name!r}",
        where=str(file),
        expected=f"one of: {', '.join(functions)}" if functions else f"a function that returns {_FOUR}",
        got="nothing of this name" if found is None else _kind(found),
        hint="name one of these, or define it" if functions else "define it in the file",
    )


def _check_options(make: Callable[..., object], given: Mapping[str, object], where: str) -> None:
    parameters = inspect.signature(make)
    try:
        parameters.bind(**given)
    except TypeError as error:
        unknown = [name for name in given if name not in parameters.parameters]
        raise UsageError(
            stage="target",
            what="the function does not take these options",
            where=where,
            expected=f"a function that can be called as {where.rpartition(':')[2]}({', '.join(given)})",
            got=str(error),
            hint=f"give the function a parameter {unknown[0]}, or leave the option away"
            if unknown
            else "give the parameter a default, or leave the option away",
        ) from error


@contextmanager
def _user_code(file: Path, what: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        raise UsageError(
            stage="target",
            what=what,
            where=_place(error, file),
            expected="Python that runs",
            got=f"{type(error).__name__}: {error}",
            hint="run the file with Python to see the whole traceback",
        ) from error


def _place(error: BaseException, file: Path) -> str:
    """File and line of the innermost frame of the user's file, or of the syntax error that has none."""
    if isinstance(error, SyntaxError) and error.filename:
        own = Path(error.filename) == file.resolve()
        return f"{file if own else error.filename}:{error.lineno}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == file.resolve()
    ]
    return f"{file}:{lines[-1]}" if lines else str(file)


def _as_target(result: object, where: str) -> Target:
    if isinstance(result, Target):
        return result
    if not isinstance(result, tuple | list):
        raise _other(where, _kind(result))
    if len(result) != 4:
        raise _other(where, f"{len(result)} values")
    model, loss_fn, optimizer, batch = result
    if not isinstance(model, nn.Module):
        raise _other(where, f"{_kind(model)} as model", "a torch.nn.Module")
    if loss_fn is not None and not callable(loss_fn):
        raise _other(where, f"{_kind(loss_fn)} as loss_fn", "a function loss_fn(model, *batch)")
    if loss_fn is None and optimizer is not None:
        raise _other(where, "an optimizer without loss_fn", "a loss to train with, or no optimizer")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise _other(where, f"{_kind(optimizer)} as optimizer", "a torch.optim.Optimizer or None")
    if isinstance(batch, Mapping):
        return Target(model, loss_fn, optimizer, batch)
    if isinstance(batch, tuple | list):
        return Target(model, loss_fn, optimizer, tuple(batch))
    raise _other(where, f"{_kind(batch)} as batch", "a tuple, a list or a dict, the arguments of loss_fn")


def _other(where: str, got: str, expected: str = _FOUR) -> UsageError:
    return UsageError(
        stage="target",
        what="the function returns something else",
        where=where,
        expected=expected,
        got=got,
        hint="have it return these; docs/cli.md shows one",
    )


def _kind(thing: object) -> str:
    return f"an object of type {type(thing).__name__}"
