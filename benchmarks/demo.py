"""The demo, with nothing cached and again."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.case import Row

MAIN = "from peakfold.cli.main import main; main()"


def demo(size: str = "cpu") -> list[Row]:
    """Return the wall seconds of ``peakfold demo`` with empty caches, and of a second run.

    Raises:
        CalledProcessError: it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        caches = {"PEAKFOLD_CACHE": f"{folder}/cache", "NUMBA_CACHE_DIR": f"{folder}/numba"}
        cold, warm = (_run(Path(folder), os.environ | caches, size) for _ in range(2))
        found = json.loads((Path(folder) / "demo" / "report.json").read_text())
    row: Row = {
        "size": size,
        "cold_seconds": cold,
        "warm_seconds": warm,
        "equal": all(report["equal"]["ok"] for report in found["reports"]),
        "memory_ratios": [report["memory_ratio"] for report in found["reports"]],
    }
    return [row]


def _run(folder: Path, environment: dict[str, str], size: str) -> float:
    command = [sys.executable, "-c", MAIN, "demo", "--out", str(folder / "demo"), "--size", size]
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start
