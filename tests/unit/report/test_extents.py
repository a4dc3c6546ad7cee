"""From when to when blocks are drawn: none is on another that is not there at the same time."""

from hypothesis import given
from hypothesis import strategies as st

from peakfold.plan.memory.trace import Request
from peakfold.report.extents import extents

ASK, GIVE_BACK, END = range(3)


@st.composite
def programs(draw) -> tuple[list[Request], int]:
    """Allocations in any order, over steps of any length; some outlive the program."""
    made, live, row = [], [], 0
    kinds = draw(st.lists(st.sampled_from([ASK, ASK, GIVE_BACK, END]), max_size=40))
    for at, kind in enumerate(kinds):
        if kind == END:
            row += 1
        elif kind == ASK:
            live.append(len(made))
            made.append((at, row))
        elif live:
            index = live.pop(draw(st.integers(0, len(live) - 1)))
            made[index] = (*made[index], at, row)
    requests = [
        Request(64, one[0], one[2], one[1], until=one[3])
        if len(one) == 4
        else Request(64, one[0], None, one[1])
        for one in made
    ]
    return requests, row + 1


@given(programs())
def test_blocks_are_apart_in_the_picture_where_they_are_in_time(case):
    requests, steps = case
    found = extents(requests, steps)
    for request, (start, end) in zip(requests, found, strict=True):
        assert request.row <= start < request.row + 1
        assert start < end <= steps
        assert end == steps if request.dies is None else request.until < end <= request.until + 1
    for one, (start, _) in zip(requests, found, strict=True):
        for other, (_, end) in zip(requests, found, strict=True):
            if other.dies is not None and other.dies <= one.born:
                assert end <= start


def test_a_step_in_which_nothing_takes_a_place_is_whole():
    requests = [Request(64, 0, 3, 0, until=0), Request(64, 1, 5, 0, until=1), Request(64, 6, 8, 2, until=2)]
    assert extents(requests, 3) == [(0, 1), (0, 2), (2, 3)]


def test_what_is_asked_for_outside_of_the_steps_is_drawn_in_the_nearest():
    assert extents([Request(64, 0, 9, -1, until=7), Request(64, 8, None, 7)], 2) == [(0, 2), (1, 2)]
