"""Offloads that the planner chooses: legal, within the budget, hidden where they must be."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.strategies import orders, plans, runnable_graphs

from peakfold.cost.costs import Costs, Link
from peakfold.errors import InfeasibleError
from peakfold.ir.plan import Arrive, Offload, Plan, Prefetch
from peakfold.plan.check import check_plan, check_schedule
from peakfold.plan.memory.host import host_layout
from peakfold.plan.schedule import offload_search, offloading
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.lower import lower, lower_tables
from peakfold.plan.schedule.offloading import Offloader, _Chosen
from peakfold.plan.schedule.simulate import simulate, simulate_tables


@pytest.fixture(autouse=True)
def every_value_is_worth_a_copy(monkeypatch):
    monkeypatch.setattr(offloading, "SMALLEST", 1)


def costs_of(data, graph):
    steps = [node.id for node in graph.nodes if not node.is_view]
    seconds = {node: data.draw(st.integers(0, 9)) / 4 for node in steps}
    link = Link(data.draw(st.sampled_from([4.0, 24.0, 1000.0])), data.draw(st.sampled_from([0.0, 0.3])), 1e3)
    return Costs(seconds, {}, link=link)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_fitted_plan_keeps_its_target(data):
    graph = data.draw(runnable_graphs())
    costs = costs_of(data, graph)
    tables = tabulate(graph, costs)
    offloader = Offloader(tables, data.draw(plans(graph)), costs.link)
    peak, resident = offloader.timeline.peak, tables.resident
    target = data.draw(st.integers(resident * 3 // 4, peak))
    limit = data.draw(st.none() | st.integers(0, 200))
    found = offloader.fit(target, limit)
    if found is None:
        return
    schedule = lower_tables(tables, found)
    assert check_plan(graph, found) == []
    assert check_schedule(graph, schedule) == []
    timeline = simulate_tables(tables, schedule, costs.link)
    assert timeline.peak <= target
    assert timeline.host_peak <= (timeline.host_peak if limit is None else limit)
    assert timeline.host_peak <= host_layout(graph, schedule).nbytes


@settings(max_examples=150, deadline=None)
@given(runnable_graphs(), st.data())
def test_every_gap_that_is_decided_is_on_the_schedule(graph, data):
    tables = tabulate(graph, costs_of(data, graph))
    order = data.draw(orders(graph))
    offloader = Offloader(tables, Plan(graph.digest, order=order), Link(4.0, 0.0, 1e3))
    picks = [_Chosen(i, int(stay.out), int(stay.read)) for i, stay in enumerate(offloader.stays)]
    plan = offloader._planned(picks)
    steps = lower_tables(tables, plan).steps
    assert sum(isinstance(step, Offload) for step in steps) == len(plan.offload)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_hidden_copies_cost_no_time(data):
    graph = data.draw(runnable_graphs())
    costs = costs_of(data, graph)
    tables = tabulate(graph, costs)
    offloader = Offloader(tables, data.draw(plans(graph)), costs.link)
    found = offloader.fit(tables.resident // 2, waiting=False)
    assert found is not None
    timeline = simulate_tables(tables, lower_tables(tables, found), costs.link)
    assert timeline.seconds <= offloader.timeline.seconds + 1e-9
    assert timeline.peak <= offloader.timeline.peak


def test_host_places_do_not_overlap():
    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def places(data):
        graph = data.draw(runnable_graphs())
        schedule = lower(graph, data.draw(plans(graph)))
        layout = host_layout(graph, schedule)
        moves = [step.buffer for step in schedule.steps if isinstance(step, Offload)]
        held = {}
        at = iter(layout.offsets)
        for step in schedule.steps:
            if isinstance(step, Offload):
                held[step.buffer] = next(at)
                spans = sorted((offset, offset + graph.nbytes(b.value)) for b, offset in held.items())
                assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
                assert spans[-1][1] <= layout.nbytes
            elif type(step).__name__ == "Arrive":
                del held[step.buffer]
        assert len(moves) == len(layout.offsets)

    places()


@settings(max_examples=15, deadline=None)
@given(runnable_graphs(), st.integers(0, 2))
def test_a_search_is_no_worse_with_offloads(graph, seed):
    steps = [node.id for node in graph.nodes if not node.is_view]
    costs = Costs(dict.fromkeys(steps, 1.0), {}, link=Link(64.0, 0.0, 1e3))
    tables = tabulate(graph, costs)
    plain = Offloader(tables, Plan(graph.digest), costs.link).timeline
    memory = (plain.peak + tables.resident) // 2
    try:
        found = offload_search.optimize(graph, costs, memory=memory, iterations=300, seed=seed)
    except InfeasibleError:
        return
    again = offload_search.optimize(graph, costs, memory=memory, iterations=300, seed=seed)
    assert again.plan == found.plan
    schedule = lower(graph, found.plan)
    assert check_schedule(graph, schedule) == []
    assert simulate(graph, costs, schedule).peak == found.peak_bytes <= memory
    assert found.lower_bound_bytes <= found.peak_bytes


@settings(max_examples=15, deadline=None)
@given(runnable_graphs())
def test_the_lowest_peak_within_a_time(graph):
    steps = [node.id for node in graph.nodes if not node.is_view]
    costs = Costs(dict.fromkeys(steps, 1.0), {}, link=Link(64.0, 0.0, 1e3))
    tables = tabulate(graph, costs)
    plain = Offloader(tables, Plan(graph.digest), costs.link).timeline
    found = offload_search.optimize(graph, costs, latency=1.5 * plain.seconds, iterations=200)
    timeline = simulate(graph, costs, lower(graph, found.plan))
    assert timeline.peak == found.peak_bytes <= plain.peak
    assert timeline.seconds <= 1.5 * plain.seconds + 1e-9


@settings(max_examples=10, deadline=None)
@given(runnable_graphs(), st.floats(0.0, 0.9))
def test_a_time_that_nothing_keeps_is_refused_with_offloads_too(graph, share):
    steps = [node.id for node in graph.nodes if not node.is_view]
    assume(steps)
    costs = Costs(dict.fromkeys(steps, 1.0), {}, link=Link(64.0, 0.0, 1e3))
    with pytest.raises(InfeasibleError):
        offload_search.optimize(graph, costs, latency=share * len(steps), iterations=20)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_copies_are_given_what_time_the_target_has_bytes_for(data):
    """Against the plan with the same offloads that gives each copy just its time."""
    graph = data.draw(runnable_graphs())
    costs = costs_of(data, graph)
    tables = tabulate(graph, costs)
    offloader = Offloader(tables, data.draw(plans(graph)), costs.link)
    picks = [
        _Chosen(i, len(offloader.during), 0) for i in range(len(offloader.stays)) if data.draw(st.booleans())
    ]
    target = data.draw(st.integers(tables.resident * 3 // 4, offloader.timeline.peak))
    tight, eased = offloader._planned(picks), offloader._eased(picks, target)
    lines = [simulate_tables(tables, lower_tables(tables, plan), costs.link) for plan in (tight, eased)]
    assert lines[1].peak <= max(target, lines[0].peak)
    assert lines[1].seconds <= lines[0].seconds + 1e-9
    assert [(gap.value, gap.after, gap.use) for gap in eased.offload] == [
        (gap.value, gap.after, gap.use) for gap in tight.offload
    ]
    first = offloader._places.first
    for one, other in zip(tight.offload, eased.offload, strict=True):
        assert first[one.gone] <= first[other.gone]
        assert first[other.fetch] <= first[one.fetch]
    assert check_schedule(graph, lower_tables(tables, eased)) == []


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_of_copies_back_that_start_together_the_first_is_read_first(data):
    graph = data.draw(runnable_graphs())
    tables = tabulate(graph, costs_of(data, graph))
    offloader = Offloader(tables, data.draw(plans(graph)), Link(1e6, 0.0, 1e3))
    gaps = offloader._planned([_Chosen(i, 0, 0) for i in range(len(offloader.stays))]).offload
    assume(gaps)
    fetch = data.draw(st.sampled_from(gaps)).fetch
    together = tuple(sorted(replace(gap, fetch=fetch) for gap in gaps))
    steps = lower_tables(tables, replace(offloader.plan, offload=together)).steps
    for at, (step, following) in enumerate(pairwise(steps)):
        if isinstance(step, Prefetch) and isinstance(following, Prefetch):
            assert steps.index(Arrive(step.buffer), at) < steps.index(Arrive(following.buffer), at)
