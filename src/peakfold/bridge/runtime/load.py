"""A saved step, from its file back to a model."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from peakfold.bridge.capture.binding import Binding, BufferOf, OptimizerState, Parameter, Source
from peakfold.bridge.capture.captured import Missing
from peakfold.bridge.capture.outside import differences
from peakfold.bridge.runtime.bind import Subject
from peakfold.bridge.runtime.codec import decode
from peakfold.bridge.runtime.compiled import Compiled
from peakfold.bridge.runtime.save import FORMAT, PARTS, digest
from peakfold.bridge.runtime.saved_guards import LoadedGuards, SavedGuards
from peakfold.bridge.runtime.step import Step
from peakfold.errors import CacheError, PeakfoldError, PlanError
from peakfold.ir.graph import Graph, Input
from peakfold.ir.text import parse_graph, parse_plan
from peakfold.ir.types import TensorType
from peakfold.plan.fission.derive import Splitter
from peakfold.plan.memory.layout import Layout

_Facts = tuple[Binding, SavedGuards, tuple[Missing, ...], tuple[tuple[int, float], ...], bool, Layout | None]

ReportOf = Callable[[Mapping[str, str]], object]


def load(
    path: str | Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    scaler: torch.amp.GradScaler | None = None,
    *,
    loss_fn: Callable[..., object] | None = None,
    report_of: ReportOf | None = None,
) -> Step:
    """Return the step that `Step.save` wrote, bound to this model and optimizer.

    Where it does not hold, it says so, and does not capture again. The code of the model's classes, and the
    globals and closures that it reads, must be as they were saved, and stay so. What ``loss_fn`` reads is
    compared where its Python module is loaded, or where it is given.

    Args:
        path: of the file.
        model: in the place of the one that was captured.
        optimizer: likewise.
        scaler: likewise.
        loss_fn: what was run on the model; it is not run again, but compared with what it was.
        report_of: makes the report of the texts in the file, by name; None leaves it out.

    Raises:
        CacheError: the file is missing, corrupt, or from other versions.
        PlanError: the program is for another model or optimizer.
    """
    subject = Subject(model, optimizer, scaler)
    return Step(subject, _read(Path(path), subject, loss_fn, report_of))


def _read(
    path: Path, subject: Subject, loss_fn: Callable[..., object] | None, report_of: ReportOf | None
) -> Compiled:
    """Return the program of a file that `save` wrote, if it is one for this model and optimizer.

    Raises:
        CacheError: the file is missing, corrupt, or from other versions.
        PlanError: the program is for another model or optimizer.
    """
    parts = _checked(path, _parts(path))
    try:
        saved = _with_report(_parse(parts), parts, report_of)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, PeakfoldError) as error:
        raise _corrupt(path, str(error).splitlines()[0]) from error
    changed, entries = differences(saved.portable.outside, subject.model, loss_fn)
    reason = (
        _other_model(saved.graph, saved.binding, subject)
        or saved.portable.check_model(subject.model, subject.optimizer)
        or next(iter(changed), None)
        or _absent_state(saved, subject)
    )
    if reason is not None:
        raise PlanError(
            stage="load",
            what="the saved step is for another model or optimizer",
            where=str(path),
            expected="model and optimizer as they were when the step was saved",
            got=reason,
            hint="build them the same way, or optimize again",
        )
    return replace(saved, guards=LoadedGuards.of(saved.portable, entries))


def _parts(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in ("manifest.json", *PARTS)}
    except FileNotFoundError as error:
        raise CacheError(
            stage="load",
            what="there is no saved step",
            where=str(path),
            hint="save one with step.save(path)",
        ) from error
    except (zipfile.BadZipFile, KeyError, OSError, EOFError) as error:
        raise _corrupt(path, str(error)) from error


def _corrupt(path: Path, got: str) -> CacheError:
    return CacheError(
        stage="load",
        what="the saved step is corrupt",
        where=str(path),
        expected="a file that step.save wrote",
        got=got,
        hint="optimize again and save the step anew",
    )


def _checked(path: Path, parts: dict[str, bytes]) -> dict[str, bytes]:
    try:
        manifest = json.loads(parts["manifest.json"])
        versions = (manifest["format"], manifest["torch"])
        recorded = manifest["digest"]
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(path, f"manifest.json: {error}") from error
    if versions != (FORMAT, torch.__version__):
        raise CacheError(
            stage="load",
            what="the saved step is of another version",
            where=str(path),
            expected=f"format {FORMAT} of torch {torch.__version__}",
            got=f"format {versions[0]} of torch {versions[1]}",
            hint="optimize again and save the step anew",
        )
    if recorded != digest(parts):
        raise _corrupt(path, "contents that do not match their digest")
    return parts


def _parse(parts: Mapping[str, bytes]) -> Compiled:
    graph = parse_graph(parts["graph.txt"].decode())
    plan = parse_plan(parts["plan.txt"].decode(), graph, Splitter())
    tensors = _tensors(parts["constants.pt"])
    facts = decode(json.loads(parts["binding.json"]), tensors)
    binding, portable, missing, first, inference, layout = cast(_Facts, facts)
    source = parts["step.py"].decode()
    program = Compiled(graph, binding, portable, portable, plan, source, missing, first, inference)
    return replace(program, layout=layout)


def _with_report(saved: Compiled, parts: Mapping[str, bytes], report_of: ReportOf | None) -> Compiled:
    texts = {name: parts[name].decode() for name in PARTS if name != "constants.pt"}
    told = texts["report.json"]
    report = report_of(texts) if told and report_of is not None else None
    return replace(saved, report=report, told=lambda: told)


def _tensors(content: bytes) -> list[torch.Tensor]:
    try:
        found: list[torch.Tensor] = torch.load(io.BytesIO(content), weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(str(error)) from error
    return found


def _other_model(graph: Graph, binding: Binding, subject: Subject) -> str | None:
    """Return where the model differs from what a graph was captured from, or None."""
    held: dict[str, torch.Tensor] = dict(subject.model.named_parameters(remove_duplicate=False))
    held |= dict(subject.model.named_buffers(remove_duplicate=False))
    for given, source in zip(graph.inputs, binding.sources, strict=True):
        reason = _mismatch(given, source, held)
        if reason is not None:
            return reason
    return None


def _mismatch(given: Input, source: Source, held: Mapping[str, torch.Tensor]) -> str | None:
    if not isinstance(source, Parameter | BufferOf):
        return None
    tensor = held.get(source.name)
    if tensor is None:
        return f"no {source.name}"
    assert isinstance(given.type, TensorType)
    now = (tuple(tensor.shape), tensor.stride(), str(tensor.dtype), str(tensor.device))
    then = (given.type.shape, given.type.strides, f"torch.{given.type.dtype}", given.type.device)
    return None if now == then else f"{source.name} is {now} instead of {then}"


def _absent_state(saved: Compiled, subject: Subject) -> str | None:
    """Return which optimizer state the program reads that is neither there nor made by it, or None."""
    made = {missing.source for missing in saved.missing}
    for source in saved.binding.sources:
        if not isinstance(source, OptimizerState) or source in made or subject.optimizer is None:
            continue
        state = subject.optimizer.state.get(subject.model.get_parameter(source.parameter), {})
        if not isinstance(state.get(source.key), torch.Tensor):
            return (
                f"no {source.key} of {source.parameter} in the optimizer's state: load its state_dict first"
            )
    return None
