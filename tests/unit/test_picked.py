"""Points of a front that are run: the lowest within each limit of the time."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakfold.pipeline import picked
from peakfold.pipeline.in_place import Share
from peakfold.pipeline.picked import Look, lowest_within

TIMES = st.lists(st.floats(0.5, 2.0), max_size=30).map(sorted)


@given(TIMES, st.lists(st.floats(0.4, 2.1), max_size=5))
def test_a_bisection_finds_the_last_point_within_each_limit(times, limits):
    kept = [sum(time <= limit for time in times) - 1 for limit in limits]
    assert list(lowest_within(len(times), times.__getitem__, limits)) == [one for one in kept if one >= 0]


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=30), st.floats(0.4, 2.1))
def test_where_times_do_not_rise_the_point_found_keeps_its_limit_all_the_same(times, limit):
    assert all(times[one] <= limit for one in lowest_within(len(times), times.__getitem__, [limit]))


def test_a_bisection_looks_at_few_points():
    asked = []
    list(lowest_within(1000, lambda index: asked.append(index) or index / 1000, [0.5]))
    assert len(asked) <= 10


def test_programs_without_clocks_follow_the_one_that_drops_nothing(monkeypatch):
    def program(seconds):
        return SimpleNamespace(timeline=SimpleNamespace(seconds=seconds), host_bytes=1)

    task = SimpleNamespace(device="cpu")
    monkeypatch.setattr(picked.prove, "seconds", lambda *args, rounds: {"plain": 3.0, "eager": 4.0})
    look = Look.at(task, {"plain": (task, program(2.0))}, "plain")
    assert not look.seen
    assert look.ratios()(program(6.0)) == pytest.approx(9.0 / 4.0)


def test_a_clock_that_tells_no_time_foretells_by_the_one_that_drops_nothing():
    program = SimpleNamespace(timeline=SimpleNamespace(seconds=6.0))
    silent = {"mm(8)": Share(1, 1.0, 0.0)}
    look = Look({"plain": silent}, {"plain": 3.0, "eager": 4.0}, 1.5)
    assert look.ratios()(program) == pytest.approx(9.0 / 4.0)


def test_a_second_look_is_scaled_to_eager_of_the_first():
    share = {"mm(8)": Share(1, 1.0, 1.0)}
    first = Look({"plain": share}, {"plain": 3.0, "eager": 4.0}, 1.5)
    second = Look({"plain": {}, "half": share}, {"plain": 9.0, "half": 2.0, "eager": 8.0}, 4.5)
    both = first.beside(second)
    assert both.seconds == {"plain": 3.0, "half": 1.0, "eager": 4.0}
    assert both.seen == {"plain": share, "half": share}
    assert both.usual == first.usual
