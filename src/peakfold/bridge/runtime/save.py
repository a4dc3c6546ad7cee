"""A step on disk: one zip file of texts.

manifest.json   format, versions, digest of all the rest
step.py         the emitted source
plan.txt        the plan
graph.txt       the graph
binding.json    where inputs come from, when it holds, where its allocations lie in an arena
constants.pt    tensors that the model's code held
report.json     what was known about it; empty where that was nothing
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch

import peakfold
from peakfold.bridge.runtime.codec import encode
from peakfold.bridge.runtime.compiled import Compiled
from peakfold.errors import CacheError
from peakfold.files import replacing
from peakfold.ir.text import print_graph, print_plan
from peakfold.plan.fission.derive import Splitter

FORMAT = 10
"""Grows when what a file holds changes."""

PARTS = ("step.py", "plan.txt", "graph.txt", "binding.json", "constants.pt", "report.json")
"""What a file holds beside its manifest."""


def save(compiled: Compiled, path: Path) -> None:
    """Write a program to a file; the file is either whole or not there.

    Raises:
        CacheError: the file cannot be written, or the program holds what is no plain data.
    """
    tensors: list[torch.Tensor] = []
    facts = (
        compiled.binding,
        compiled.portable,
        compiled.missing,
        compiled.first_scalars,
        compiled.inference,
        compiled.layout,
    )
    binding = json.dumps(encode(facts, tensors), indent=1)
    parts = {
        "step.py": compiled.source.encode(),
        "plan.txt": print_plan(compiled.plan, compiled.graph, splitter=Splitter()).encode(),
        "graph.txt": print_graph(compiled.graph).encode(),
        "binding.json": binding.encode(),
        "constants.pt": _tensor_bytes(tensors),
        "report.json": compiled.told().encode(),
    }
    manifest = {
        "format": FORMAT,
        "peakfold": peakfold.__version__,
        "torch": torch.__version__,
        "digest": digest(parts),
    }
    _write_aside(path, {"manifest.json": json.dumps(manifest, indent=1).encode(), **parts})


def _tensor_bytes(tensors: list[torch.Tensor]) -> bytes:
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


def digest(parts: Mapping[str, bytes]) -> str:
    """Return the digest of everything in a file but its manifest."""
    state = hashlib.sha256()
    for name in PARTS:
        state.update(f"{name} {len(parts[name])}\n".encode())
        state.update(parts[name])
    return state.hexdigest()


def _write_aside(path: Path, parts: Mapping[str, bytes]) -> None:
    try:
        with replacing(path) as stream, zipfile.ZipFile(stream, "w") as archive:
            for name, content in parts.items():
                archive.writestr(zipfile.ZipInfo(name), content)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> CacheError:
    return CacheError(
        stage="save",
        what="the step cannot be written",
        where=str(path),
        got=error.strerror or str(error),
        hint="choose a folder that exists, may be written and has space",
    )
