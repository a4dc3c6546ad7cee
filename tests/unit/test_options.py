from pathlib import Path

import pytest

from peakfold.errors import UsageError
from peakfold.options import Options, from_environment


def test_nothing_set():
    assert from_environment({}) == Options(cache=Path.home() / ".cache" / "peakfold")


def test_everything_set():
    environment = {
        "PEAKFOLD_CACHE": "/c",
        "PEAKFOLD_CHECK": "yes",
        "PEAKFOLD_DUMP": "/d",
        "PEAKFOLD_DEBUG": "3",
    }
    assert from_environment(environment) == Options(Path("/c"), True, Path("/d"), 3)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [("PEAKFOLD_CHECK", "maybe", "0 or 1"), ("PEAKFOLD_DEBUG", "-1", "a number from 0")],
)
def test_what_cannot_be_read_is_refused(name, text, expected):
    with pytest.raises(UsageError) as caught:
        from_environment({name: text})
    assert str(caught.value) == (
        f"options: the environment variable {name} cannot be read\n"
        f"  expected: {expected}\n"
        f"  got: '{text}'\n"
        f"  next: set {name} to {expected}, or unset it"
    )
