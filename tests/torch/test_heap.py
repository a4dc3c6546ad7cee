import resource
import subprocess
import sys

import pytest
import torch

from peakfold.bridge.runtime import heap

PAGES = 4 << 10
"""A quarter of those of a tensor of 64 MB."""

glibc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")


def _faults(nbytes: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(nbytes, dtype=torch.uint8).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@glibc
def test_pages_stay_while_they_are_kept_and_no_longer():
    """In a process of its own: after an allocation that failed, glibc serves a thread from another heap."""
    run = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    kept, after, again = map(int, run.stdout.split())
    assert kept < PAGES
    assert after >= PAGES
    assert again >= PAGES


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(heap, "_glibc", lambda: None)
    with heap.kept():
        assert torch.zeros(4).sum() == 0


if __name__ == "__main__":
    with heap.kept():
        _faults(96 << 20)
        within = _faults(64 << 20)
    print(within, _faults(64 << 20), _faults(64 << 20))
