"""What torch's profiler writes at every start stays out of the terminal."""

import os
import subprocess
import sys
from pathlib import Path

import peakfold

FIRST = """
import torch
from peakfold.bridge.runtime.measure import peak_bytes
peak_bytes(lambda: torch.ones(9))
"""


def test_a_process_that_only_measures_writes_nothing():
    calm = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, env=calm, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_one_place_starts_the_profiler():
    package = Path(peakfold.__file__).parent
    starts = [path.name for path in package.rglob("*.py") if "ProfilerActivity" in path.read_text()]
    assert starts == ["recording.py"]
