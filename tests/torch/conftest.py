"""What tests that measure have in common."""

import pytest
import torch


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of the test's own, and one thread."""
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
