"""Golden files: ``pytest --accept`` writes what differs; the diff is then the review.

Examples of hypothesis have no deadline: a first one compiles, and the machine may be busy.
"""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "golden"

SLOW = {*settings.default.suppress_health_check, HealthCheck.too_slow}
settings.register_profile(
    "no clock", parent=settings.default, deadline=None, suppress_health_check=sorted(SLOW, key=str)
)
settings.load_profile("no clock")


def pytest_addoption(parser):
    parser.addoption("--accept", action="store_true", help="write golden files anew instead of comparing")


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of what runs behind a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--accept"):
        os.environ["PEAKFOLD_ACCEPT"] = "1"


@pytest.fixture(scope="session", autouse=True)
def no_cache_from_before(tmp_path_factory):
    """A cache for this run of the tests, of all its processes: what others left decides nothing."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache of all"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAKFOLD_CACHE", str(folder))
        yield


@pytest.fixture
def golden():
    """Return a check that a text is the one of a golden file, by its path under ``tests/golden``."""

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        if os.environ.get("PEAKFOLD_ACCEPT"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.exists(), f"{file} is missing: run pytest --accept and look at it"
        assert text == file.read_text(encoding="utf-8"), f"{name} differs: pytest --accept writes it anew"

    return check
