"""Where values may wait outside the device, and how much room there is."""

import shutil
from pathlib import Path

from peakfold.errors import InfeasibleError, UsageError
from peakfold.pipeline.machine import free_bytes
from peakfold.pipeline.request import Request
from peakfold.report.units import bytes_text

SHARE = 0.8
"""Part of what the host has free that a program may take."""


def is_offloading(asked: Request) -> bool:
    """Whether the search may let values wait on the host."""
    if asked.offload is None:
        return not asked.device.startswith("cpu")
    return asked.offload != "none"


def folder(asked: Request) -> Path | None:
    """Return the folder whose disk takes what is offloaded; None for memory of the host.

    Raises:
        UsageError: it is no folder, or the device cannot copy to files.
    """
    if asked.offload in (None, "none", "host"):
        return None
    path = Path(str(asked.offload)).expanduser().resolve()
    if not path.is_dir():
        raise UsageError(
            stage="options",
            what="there is no such place to offload to",
            where=str(path),
            expected="none, host, or a folder that exists",
            hint="make the folder first",
        )
    if asked.device.startswith("cuda"):
        raise UsageError(
            stage="options",
            what="a CUDA device cannot offload to files",
            expected="none or host",
            got=str(asked.offload),
        )
    return path


def limit(asked: Request) -> int | None:
    """Return the most bytes that may wait on the host: what was asked for, and what is free there.

    A simulated device has no host of its own: without a limit that was asked for there is none.
    """
    given = asked.host_memory
    if asked.simulated:
        return given
    place = folder(asked)
    free = int(SHARE * (free_bytes("cpu") if place is None else shutil.disk_usage(place).free))
    return free if given is None else min(given, free)


def require_room(nbytes: int, asked: Request) -> None:
    """Raise where a program needs more bytes on the host than there are.

    Raises:
        InfeasibleError: it says how many it needs.
    """
    most = limit(asked) if nbytes else None
    if most is None or nbytes <= most:
        return
    raise InfeasibleError(
        stage="plan",
        what="the host is too small for what the plan offloads",
        where=str(folder(asked) or "memory of the host"),
        expected=f"at most {bytes_text(most)} there",
        got=bytes_text(nbytes),
        hint="offload less, to a folder with space (--offload PATH), or allow a higher peak",
    )
