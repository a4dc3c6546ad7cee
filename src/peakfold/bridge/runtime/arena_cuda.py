"""The allocator of arenas on CUDA: how it is built, and the first run of it, in a process of its own.

It has never run on a GPU so far. Whatever goes wrong, steps run without an arena and say why: it is not
built for another torch than it was written for, and not used where its first run fails or crashes.
"""

import functools
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from peakfold.errors import UsageError
from peakfold.files import replacing

SOURCE = "arena_cuda.cpp"
LIBRARIES = ("-lc10_cuda", "-lc10")
TORCH = "2.13."
"""The version whose allocator it stands before: each of its functions is handed on by name."""

HEADER = "cuda_runtime_api.h"
SECONDS = 300
SHOWN = 300
WORKS = "works"


def options(torch_folder: Path, cuda: Path | None) -> tuple[str, ...]:
    """Return what the compiler needs to know of CUDA.

    Args:
        torch_folder: of the torch that is used.
        cuda: folder of a toolkit that the user named.

    Raises:
        UsageError: torch is another one than this was written for, or there is no header of CUDA.
    """
    if not torch.__version__.startswith(TORCH):
        raise _unusable("torch is another one than its allocator for CUDA", torch.__version__, f"{TORCH}*")
    found = next((folder for folder in _folders(torch_folder, cuda) if (folder / HEADER).is_file()), None)
    if found is None:
        raise _unusable("the headers of CUDA are not there", f"no {HEADER}", "CUDA_HOME of a toolkit")
    return (f"-I{found}", *LIBRARIES)


def _folders(torch_folder: Path, cuda: Path | None) -> Iterator[Path]:
    """Yield where headers of CUDA may be: what the user says, what torch came with, where toolkits are."""
    if cuda is not None:
        yield cuda / "include"
    yield from sorted(torch_folder.parent.glob("nvidia/*/include"))
    yield Path("/usr/local/cuda/include")


@functools.cache
def require_tried(path: Path, device: str, name: str) -> None:
    """Run a small program in an arena on a device once, in a process of its own; that it went well is kept.

    Args:
        path: the compiled allocator.
        device: where it is to run.
        name: of the device and its driver.

    Raises:
        UsageError: the program computed something else, asked elsewhere for memory, or crashed.
    """
    mark = path.with_suffix(f".{hashlib.sha256(name.encode()).hexdigest()[:8]}.tried")
    if mark.is_file():
        return
    word = tried(device)
    if word != WORKS:
        raise _unusable("the allocator of arenas failed its first run there", word, "the results of torch")
    with suppress(OSError), replacing(mark) as file:
        file.write(name.encode())


def tried(device: str) -> str:
    """Return `WORKS` where the first run, in a process of its own, went well; else what it said."""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from peakfold.bridge.runtime import arena_trial as trial; "
    )
    command = [sys.executable, "-c", f"{code}trial.main({device!r})"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stdout.strip().splitlines()
    if done.returncode == 0 and said and said[-1] == WORKS:
        return WORKS
    last = (done.stderr.strip().splitlines() or said or [""])[-1]
    return f"exit code {done.returncode}: {last[:SHOWN]}"


def _unusable(what: str, got: str, expected: str) -> UsageError:
    return UsageError(
        stage="arena",
        what=what,
        got=got,
        expected=expected,
        hint="the step runs with torch's own allocator; see the settings under advice in the report",
    )
