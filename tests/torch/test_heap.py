import resource
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
def test_pages_stay_while_they_are_kept():
    with heap.kept():
        _faults(64 << 20)  # as large as the next: the best fit is then the same place
        assert _faults(64 << 20) < PAGES


@glibc
def test_a_large_block_is_mapped_afresh_before_and_after():
    with heap.kept():
        _faults(64 << 20)
    assert _faults(64 << 20) >= PAGES
    assert _faults(64 << 20) >= PAGES


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(heap, "_glibc", lambda: None)
    with heap.kept():
        assert torch.zeros(4).sum() == 0
