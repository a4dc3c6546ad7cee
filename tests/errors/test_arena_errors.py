"""What a search said of all bytes, said of an arena: whole sentences, whichever search it was."""

import pytest

from peakfold.errors import InfeasibleError
from peakfold.pipeline.arena import restated

ALONE = "no program within the budget was found: "


def found(what, lowest=5_000, bound=3_000):
    error = InfeasibleError(stage="plan", what=what, where="largest at the lowest peak: x (batch, 8 B)")
    error.lowest_peak_bytes, error.lower_bound_bytes = lowest, bound
    return str(restated(error, capacity=100, resident=1_000)).splitlines()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            ALONE + "the time of the search ended",
            "no program for this arena was found: the time of the search ended",
        ),
        (
            ALONE + "every program needs 3.0 kB",
            "no program for this arena was found: every program needs at least 2.0 kB of it",
        ),
        (
            "no program within the budget was found, in parts or not",
            "no program for this arena was found, in parts or not",
        ),
    ],
)
def test_a_refusal_says_why_and_what_is_live(what, said):
    assert found(what)[:3] == [
        f"arena: {said}",
        "  at: largest at the lowest peak: x (batch, 8 B)",
        "  expected: an arena of 100 bytes",
    ]


@pytest.mark.parametrize(("bound", "said"), [(3_000, "bound 2000 bytes"), (1_000, "no bound is proved")])
def test_a_refusal_says_the_bound_only_where_there_is_one(bound, said):
    got = found("no program within the budget was found, in parts or not", bound=bound)[3]
    assert got == f"  got: at least 4000 bytes live at once beside 1.0 kB outside of it; {said}"
