"""What was proved and measured before, by everything that decides it.

A proof is of one emitted program, of the numbers that it starts from, and of one machine: whoever asks again
for the very same gets the same answer, with the day on which it was made. So it is with eager's peak, and
with how much slower a program without recomputation is than eager. An entry says which peakfold made it:
those of another are dropped, with a word, and made anew.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar, get_type_hints

import torch
from torch.utils import _pytree as pytree

import peakfold
from peakfold.bridge.capture import Captured
from peakfold.bridge.runtime.profile import machine
from peakfold.pipeline.plan_cache import moved_aside, write_entry
from peakfold.pipeline.program import Program
from peakfold.pipeline.task import Task
from peakfold.report.model import Timeline

ROWS = 1 << 20
"""Elements of a tensor that are hashed at once."""
SETTINGS: tuple[Callable[[], object], ...] = (
    torch.get_default_dtype,
    torch.get_float32_matmul_precision,
    torch.get_deterministic_debug_mode,
    lambda: torch.backends.mkldnn.enabled,
)
"""Settings of torch by which the same program rounds or allocates otherwise."""
T = TypeVar("T")


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
        peak_bytes: that the program was measured at.
        bit_equal: whether every bit agreed in the working precision.
        widened: the model's own casts to a narrower type were to float64 too.
        undecided: numbers that rounding alone decides.
        one_side: why only the sides of branches that the batch leads to were compared, or nothing.
    """

    max_error: float
    bound: float
    times: Times
    peak_bytes: int
    bit_equal: bool
    widened: bool = False
    undecided: int = 0
    one_side: str = ""


@dataclass(frozen=True)
class Original:
    """What eager was measured at.

    Attributes:
        peak_bytes: the most bytes at once.
        is_finite: whether no loss was NaN or infinite.
        day: on which, as ``2026-01-31``.
    """

    peak_bytes: int
    is_finite: bool
    day: str


@dataclass(frozen=True)
class Calibration:
    """Measured seconds of the program without recomputation over eager's, and on which day."""

    plain_over_eager: float
    day: str


WORDS: Mapping[type, str] = {
    Proof: "a proof",
    Original: "a measurement of eager",
    Calibration: "a measurement of eager's time",
}


def key_of(numbers: str, program: Program) -> str:
    """Return a key of the program, all that it starts from, as `numbers_of` says it, and the machine."""
    where = " in an arena" if program.in_arena else ""
    where += " that holds all" if program.layout is not None and program.layout.held else ""
    return _key(f"{program.captured.graph.digest} {program.source}{where}", numbers, program.captured)


def key_of_eager(numbers: str, captured: Captured, before: Timeline) -> str:
    """Return a key of the original: what it computes, holds how long and starts from, and the machine."""
    held = [(block.kind, block.nbytes, block.start, block.end) for block in before.blocks]
    return _key(f"eager {captured.graph.digest} {len(before.steps)} {held}", numbers, captured)


def numbers_of(task: Task) -> str:
    """Return a digest of all that a step starts from: weights, gradients, state, settings, batch."""
    return _digest(_leaves(task))


def _key(what: str, numbers: str, captured: Captured) -> str:
    settings = [f"{setting()}" for setting in SETTINGS]
    first = f"{captured.first_scalars} {captured.missing}"
    here = f"{machine(torch.get_num_threads())} {settings} {what} {first} {numbers}"
    return hashlib.sha256(f"{here} {_digest(_constants(captured))}".encode()).hexdigest()[:24]


def _digest(leaves: Iterable[object]) -> str:
    """Return a digest of tensors and other values.

    NumPy reads copies: a storage that it has seen cannot be resized any more, and so not be offloaded.
    """
    state = hashlib.sha256()
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            state.update(f"{type(leaf).__name__} {leaf!r} ".encode())
            continue
        state.update(f"{leaf.dtype} {tuple(leaf.shape)} {leaf.stride()}".encode())
        flat = leaf.detach().cpu().reshape(-1)
        for start in range(0, flat.numel(), ROWS):
            part = flat[start : start + ROWS].clone()
            state.update(part.view(torch.uint8).numpy().data)
    return state.hexdigest()


def _constants(captured: Captured) -> Iterator[torch.Tensor]:
    """Yield what the program holds itself, but for the key that each step draws anew."""
    binding = captured.binding
    yield from (tensor for at, tensor in enumerate(binding.constants) if at != binding.key)


def _leaves(task: Task) -> Iterator[object]:
    """Yield every tensor and number that a step starts from; of other things, only that they are there."""
    for parameter in task.model.parameters():
        yield from (parameter, parameter.grad)
    yield from task.model.buffers()
    held: list[object] = [task.batch, task.clip_grad_norm, task.keyed]
    if task.optimizer is not None:
        groups = [{**group, "params": len(group["params"])} for group in task.optimizer.param_groups]
        held += [list(task.optimizer.state.values()), groups]
    if task.scaler is not None:
        held.append(task.scaler.state_dict())
    for leaf in pytree.tree_leaves(held):
        is_known = leaf is None or isinstance(leaf, torch.Tensor | str | bool | int | float)
        yield leaf if is_known else type(leaf).__name__


@cache
def maker() -> str:
    """Return which peakfold makes an entry: its version, and what its files say."""
    root = Path(peakfold.__file__).parent
    state = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        state.update(f"{path.relative_to(root)}".encode() + path.read_bytes())
    return f"{version('peakfold')} {state.hexdigest()[:12]}"


def load(folder: Path, key: str, kind: type[T]) -> tuple[T | None, str | None]:
    """Return the entry of a key, and what went wrong; None for what is not there.

    A file that cannot be read as such an entry is moved aside; one of another peakfold is dropped.

    Args:
        folder: of the entries.
        key: of what was proved or measured.
        kind: of entry.
    """
    path, what = folder / f"{key}.json", f"{WORDS[kind]} that was kept"
    try:
        if not path.exists():
            return None, None
        found = json.loads(path.read_text())
        if isinstance(found, dict) and found.get("maker") != maker():
            path.unlink(missing_ok=True)
            return None, f"{what} is of another peakfold: it was dropped, and made again"
        return _made(kind, found), None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{what} cannot be read: {error.strerror or error}: {path}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, moved_aside(path, what, "made")


def _made(kind: type[T], found: object) -> T:
    """Return an entry as it was kept.

    Raises:
        KeyError, TypeError: a field is missing, or of another type.
    """
    if not isinstance(found, dict):
        raise TypeError(f"{kind.__name__}: {type(found).__name__}")
    hints = get_type_hints(kind)
    return kind(**{name: _field(hint, found[name]) for name, hint in hints.items()})


def _field(hint: type[object], value: object) -> object:
    if is_dataclass(hint):
        return _made(hint, value)
    if type(value) is not hint and not (hint is float and type(value) is int):
        raise TypeError(f"{value!r} is no {hint.__name__}")
    return value


def store(folder: Path, key: str, entry: Proof | Original | Calibration) -> str | None:
    """Keep an entry; return what went wrong, or None."""
    return write_entry(folder, key, {"maker": maker(), **asdict(entry)}, WORDS[type(entry)])
