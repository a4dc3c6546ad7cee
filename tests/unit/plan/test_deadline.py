"""Searches end when their time is over, in every stage; seconds are those of a clock of the test."""

from math import inf

import pytest
from tests.unit.plan.test_planner import chain, even

from peakfold.ir.plan import Plan
from peakfold.plan.schedule.deadline import Deadline
from peakfold.plan.schedule.found import Point
from peakfold.plan.schedule.planner import optimize_front
from peakfold.plan.search.polish import again
from peakfold.plan.search.states import Archive

TICK = 0.125


class Ticking:
    """A clock on which a tick passes whenever it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.reads * TICK


def test_what_is_left_of_a_deadline_is_shared():
    whole = Deadline.after(8.0, lambda: 100.0)
    assert (whole.left, whole.part(0.25).left, whole.is_over) == (8.0, 2.0, False)
    assert (Deadline().left, Deadline().part(0.5).left) == (inf, inf)
    assert Deadline(1.0, lambda: 3.0).is_over


@pytest.mark.parametrize("seconds", [0.0, 1.0, 8.0])
def test_a_search_that_is_a_part_of_another_ends_with_it(seconds):
    graph = chain(12)
    clock = Ticking()
    found = optimize_front(
        graph, even(graph), count=8, time_budget=1e9, deadline=Deadline.after(seconds, clock)
    )
    assert found.points[0] is not None
    assert seconds / TICK <= clock.reads <= seconds / TICK + 60


def ends(workers: int, left: float = 8.0) -> list[float]:
    """When planning ends of the first two of four times."""
    archive = Archive()
    archive.add(Point(10, 1.0, Plan("x")), Point(5, 2.0, Plan("x")))
    deadline = Deadline.after(left, lambda: 0.0)
    return [one.until for one in again((1.0, 2.0, 3.0, 4.0), 2, archive, deadline, workers)]


def test_times_that_are_planned_again_share_what_is_left():
    assert ends(workers=1) == [2.0, 4.0]
    assert ends(workers=2) == [4.0, 4.0]
    assert ends(workers=2, left=inf) == [inf, inf]
