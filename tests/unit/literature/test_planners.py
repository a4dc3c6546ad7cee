"""The literature's planners on a chain whose best plans are known, and on random graphs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import runnable_graphs
from tests.unit.plan.test_planner import KB, chain, even

from peakfold.plan.check import check_schedule
from peakfold.plan.literature import PLANNERS, Subject

LAYERS = 16


def subject():
    graph = chain(LAYERS)
    return Subject.of(graph, even(graph))


@pytest.mark.parametrize("name", list(PLANNERS))
def test_no_budget_drops_nothing(name):
    found = PLANNERS[name](subject(), 10**9)
    assert found.timeline.seconds == pytest.approx(3 * LAYERS + 1)


@pytest.mark.parametrize("name", list(PLANNERS))
def test_a_chain_of_sixteen_fits_in_about_eight_activations(name):
    given_ = subject()
    plain = PLANNERS[name](given_, 10**9).timeline.peak
    found = PLANNERS[name](given_, plain - 7 * KB)
    assert found.timeline.peak <= plain - 7 * KB
    assert found.timeline.seconds > 3 * LAYERS + 1.5


@pytest.mark.parametrize("less", range(1, 8))
def test_the_greedy_one_runs_one_layer_again_for_each_activation_less(less):
    given_ = subject()
    plain = PLANNERS["xla"](given_, 10**9).timeline
    found = PLANNERS["xla"](given_, plain.peak - less * KB).timeline
    assert found.peak == plain.peak - less * KB
    assert found.seconds == pytest.approx(plain.seconds + less)


def test_the_greedy_one_is_stuck_where_every_value_would_keep_another_alive():
    given_ = subject()
    plain = PLANNERS["xla"](given_, 10**9).timeline.peak
    assert PLANNERS["xla"](given_, plain - 9 * KB).timeline.peak == plain - 7 * KB


def test_rotor_is_the_fastest_on_a_chain():
    given_ = subject()
    plain = PLANNERS["rotor"](given_, 10**9).timeline.peak
    budget = plain - 10 * KB
    seconds = {name: plan(given_, budget).timeline for name, plan in PLANNERS.items()}
    fits = {name: line.seconds for name, line in seconds.items() if line.peak <= budget}
    assert fits["rotor"] == min(fits.values())


@pytest.mark.parametrize("name", list(PLANNERS))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_schedule_is_legal(name, data):
    graph = data.draw(runnable_graphs())
    given_ = Subject.of(graph, even(graph))
    plain = PLANNERS[name](given_, 10**12).timeline.peak
    for share in (0.9, 0.6):
        found = PLANNERS[name](given_, int(plain * share))
        assert not check_schedule(graph, found.schedule)
