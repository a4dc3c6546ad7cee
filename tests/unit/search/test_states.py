"""Hashes of states, and the archive of the best plans."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from peakfold.ir.plan import Plan
from peakfold.plan.schedule.found import Point
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.states import Archive, State

PARTS = st.tuples(*[st.integers(1, 8)] * 5)
POINTS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=30)


@given(st.lists(PARTS, min_size=1, max_size=6))
def test_a_hash_depends_on_the_state_alone(path):
    start = State((1,) * 5, 0)
    walked = start
    for parts in path:
        walked = walked.to(parts)
    assert walked == start.to(path[-1])


@given(PARTS, PARTS)
def test_different_states_have_different_hashes(one, other):
    start = State((1,) * 5, 0)
    assert (start.to(one).code == start.to(other).code) == (one == other)


@given(POINTS, st.integers(1, 20), st.integers(1, 20))
def test_the_archive_is_monotone_and_holds_the_best(points, memory, seconds):
    archive, plan = Archive(), Plan("")
    for nbytes, time in points:
        archive.add(Point(nbytes, time, plan))
    front = archive.front[::-1]
    assert all(a.peak_bytes < b.peak_bytes and a.seconds > b.seconds for a, b in pairwise(front))
    fits = [(t, b) for b, t in points if b <= memory]
    best = archive.best(Goal(memory, None))
    assert (best is None) == (not fits)
    assert best is None or (best.seconds, best.peak_bytes) == min(fits)
    within = [(b, t) for b, t in points if t <= seconds]
    least = archive.best(Goal(None, seconds))
    assert (least is None) == (not within)
    assert least is None or least.peak_bytes == min(within)[0]
