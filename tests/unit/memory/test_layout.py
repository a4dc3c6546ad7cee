"""Layouts of whole programs: what passes, what is kept, smaller shapes at a larger one's places."""

from dataclasses import replace

import pytest

from peakfold.errors import InfeasibleError
from peakfold.plan.memory.check import check_placement
from peakfold.plan.memory.layout import lay_out, live_words, placed, relaid
from peakfold.plan.memory.trace import Request, Trace


def trace(*rows, steps=("a", "b", "c"), length=10):
    return Trace(tuple(Request(*row) for row in rows), steps, length)


PLAIN = trace((100, 0, 4, 0, "x"), (64, 1, 3, 0, "y"), (200, 4, 6, 1, "z"), (4, 5, None, 1, "loss"))


def test_what_is_kept_lies_above_what_passes_for_all_of_the_step():
    layout = lay_out(PLAIN)
    assert (layout.passing, layout.arena, layout.lower_bound) == (256, 320, 320)
    assert layout.offsets[3] == 256
    assert (layout.gap, layout.status) == (0.0, "optimal")
    assert check_placement(placed(layout), layout.passing) == 256


def test_a_program_that_allocates_nothing_has_no_arena():
    assert (lay_out(trace()).arena, lay_out(trace()).gap, placed(lay_out(trace()))) == (0, 0.0, None)


def test_only_results():
    assert lay_out(trace((1, 0, None), (65, 1, None))).offsets == (0, 64)


def test_a_capacity_below_the_bound_is_refused_with_what_is_live():
    with pytest.raises(InfeasibleError) as caught:
        lay_out(PLAIN, capacity=319)
    assert str(caught.value) == (
        "memory: no arena of this capacity holds what is live at once: proved\n"
        "  at: largest there: z 200 bytes, loss 4 bytes\n"
        "  expected: 319 bytes or less\n"
        "  got: 320 bytes live at once\n"
        "  next: allow at least 320 bytes"
    )
    assert caught.value.lower_bound_bytes == 320
    assert lay_out(PLAIN, capacity=320).status in ("fits", "optimal")


def test_what_is_live_is_named_the_largest_first():
    assert live_words(PLAIN) == ["z 200 bytes", "loss 4 bytes"]


def test_a_smaller_shape_has_the_places_of_the_larger_one():
    large = lay_out(PLAIN)
    small = replace(PLAIN, requests=tuple(replace(r, size=max(1, r.size // 2)) for r in PLAIN.requests))
    found = relaid(large, small)
    assert found is not None
    assert (found.offsets, found.arena, found.trace) == (large.offsets, large.arena, small)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r[0], size=129),
        lambda r: replace(r[0], dies=None),
        lambda r: replace(r[0], dies=5),
        lambda r: replace(r[0], row=2),
    ],
    ids=["larger", "kept", "longer, into another one", "another step"],
)
def test_another_program_has_not(change):
    requests = (change(PLAIN.requests), *PLAIN.requests[1:])
    assert relaid(lay_out(PLAIN), replace(PLAIN, requests=requests)) is None


def test_fewer_requests_have_their_places_too():
    assert relaid(lay_out(PLAIN), replace(PLAIN, requests=PLAIN.requests[:1])).offsets == (
        lay_out(PLAIN).offsets[0],
    )
