"""Proofs that were made before, by everything that decides them, and the times measured with each.

The comparison in float64 runs both programs on the same weights and batch: whoever asks again for the
very same program, weights, batch and machine gets the same answer, and need not wait for it. The seconds
of both were measured then, in turn; they are given with their day.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.runtime.profile import machine
from peakfold.pipeline.plan_cache import moved_aside, write_entry
from peakfold.pipeline.program import Program
from peakfold.pipeline.task import Task

FORMAT = 2
ROWS = 1 << 20
"""Elements of a tensor that are hashed at once."""


@dataclass(frozen=True)
class Times:
    """What was measured of one program, beside eager and the program without recomputation.

    Attributes:
        eager: CPU seconds of eager.
        plan: of the program.
        plain_over_eager: seconds of the program without recomputation over eager's.
        day: on which, as ``2026-01-31``.
    """

    eager: float
    plan: float
    plain_over_eager: float
    day: str


@dataclass(frozen=True)
class Proof:
    """What was found.

    Attributes:
        max_error: largest error in float64, relative to its own scale.
        bound: what it may be.
        times: measured with it.
        widened: the model's own casts to a narrower type were to float64 too.
        undecided: numbers that rounding alone decides.
    """

    max_error: float
    bound: float
    times: Times
    widened: bool = False
    undecided: int = 0


def key_of(task: Task, program: Program) -> str:
    """Return a key of the program, every tensor that it starts from, and the machine.

    NumPy reads copies: a storage that it has seen cannot be resized any more, and so not be offloaded.
    """
    here = machine(torch.get_num_threads())
    where = " in an arena" if program.in_arena else ""
    where += " that holds all" if program.layout is not None and program.layout.held else ""
    state = hashlib.sha256(f"{FORMAT} {here} {program.source}{where}".encode())
    for tensor in (*_tensors(task), *_constants(program)):
        state.update(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}".encode())
        flat = tensor.detach().cpu().reshape(-1)
        for start in range(0, flat.numel(), ROWS):
            part = flat[start : start + ROWS].clone()
            state.update(part.view(torch.uint8).numpy().tobytes())
    return state.hexdigest()[:24]


def _constants(program: Program) -> Iterator[torch.Tensor]:
    """Yield what the program holds itself, but for the key that each step draws anew."""
    binding = program.captured.binding
    yield from (tensor for at, tensor in enumerate(binding.constants) if at != binding.key)


def _tensors(task: Task) -> Iterator[torch.Tensor]:
    yield from task.model.parameters()
    yield from task.model.buffers()
    held = [] if task.optimizer is None else list(task.optimizer.state.values())
    for leaf in pytree.tree_leaves((held, task.batch)):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def load(folder: Path, key: str) -> tuple[Proof | None, str | None]:
    """Return the proof of a key, and what went wrong; None for what is not there.

    A file that cannot be read as a proof is moved aside.
    """
    path = folder / f"{key}.json"
    try:
        return (_read(path) if path.exists() else None), None
    except OSError as error:
        return None, f"a proof that was kept cannot be read: {error.strerror or error}: {path}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, moved_aside(path, "a proof that was kept", "made")


def _read(path: Path) -> Proof:
    found = json.loads(path.read_text())
    taken = found["times"]
    ratio = float(taken["plain_over_eager"])
    times = Times(float(taken["eager"]), float(taken["plan"]), ratio, str(taken["day"]))
    wide, undecided = bool(found.get("widened", False)), int(found.get("undecided", 0))
    return Proof(float(found["max_error"]), float(found["bound"]), times, wide, undecided)


def store(folder: Path, key: str, proof: Proof) -> str | None:
    """Keep a proof; return what went wrong, or None."""
    return write_entry(folder, key, asdict(proof), "the proof")
