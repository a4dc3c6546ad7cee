"""Golden files: ``pytest --accept`` writes what differs; the diff is then the review."""

import os
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser):
    parser.addoption("--accept", action="store_true", help="write golden files anew instead of comparing")


def pytest_configure(config):
    if config.getoption("--accept"):
        os.environ["PEAKFOLD_ACCEPT"] = "1"


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
