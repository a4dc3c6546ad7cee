"""What the machine has free, and what a report says of it."""

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch

from peakfold.errors import UsageError

MEMINFO = Path("/proc/meminfo")
CGROUP = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)

ROOM = 0.8
"""The part of what is free that running beside what is there may take."""


def free_bytes(device: str) -> int:
    """Return the bytes that a program may still take on a device.

    On a CPU that is what the system has available, less where a control group allows less.

    Raises:
        UsageError: the device has no memory of its own that can be asked.
    """
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device != "cpu":
        raise UsageError(
            stage="options", what="free memory cannot be asked", got=device, expected="cpu or cuda"
        )
    return min(_available(), *(_group_room(limit, used) for limit, used in CGROUP))


def _available() -> int:
    if not MEMINFO.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_room(limit: Path, used: Path) -> int:
    if not limit.exists() or not used.exists():
        return 2**62
    text = limit.read_text().strip()
    return 2**62 if text == "max" else int(text) - int(used.read_text())


def environment(seed: int) -> Mapping[str, str]:
    """Return versions, machine and threads, for reports."""
    return {
        "peakfold": version("peakfold"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {platform.system()}",
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "seed": str(seed),
    }
