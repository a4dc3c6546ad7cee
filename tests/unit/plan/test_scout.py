"""What planned states teach of others, and that none is planned twice."""

from types import SimpleNamespace

import pytest

from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.scout import Scout
from peakfold.plan.search.sketch import Estimate
from peakfold.plan.search.states import State

START = State((1, 1, 1), 0)
TIMES = (1.0, 2.0)
PEAKS = {(2, 1, 1): 50.0, (2, 2, 1): 40.0, (1, 1, 2): 45.0}


def scout():
    """One for which each state promises its peak at any time; eager takes 100 bytes and 100 seconds."""
    sketch = SimpleNamespace(
        estimate=lambda parts, goal: Estimate(PEAKS[parts], 0.5), unmeasured=lambda parts: []
    )
    found = Scout(sketch, Goal(None, TIMES[-1]), eager=100.0, top=100, times=TIMES)
    found.add(START.to(parts) for parts in PEAKS)
    return found


def test_what_a_state_came_to_at_each_time_corrects_those_that_split_one_candidate_more():
    looked = scout()
    one, more, other = (START.to(parts) for parts in PEAKS)
    looked.learn(one, (50.0, 25.0))
    usual = (1.0, 1.0)
    assert looked._corrected((40.0, 40.0), more, usual) == pytest.approx((40.0, 20.0))
    assert looked._corrected((45.0, 45.0), other, usual) == (45.0, 45.0)
    have = (50.0, 25.0)
    assert looked.take(1, have) == [more]


def test_states_that_come_first_are_taken_once_and_those_that_cannot_be_split_not_at_all():
    looked = scout()
    first = [State((9, 9, 9), 999), *(START.to(parts) for parts in PEAKS)]
    taken = [state for _ in range(3) for state in looked.take(1, (100.0, 100.0), first)]
    assert taken == first[1:]
    assert looked.take(1, (100.0, 100.0), first) == []
