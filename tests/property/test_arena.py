"""Traces of any shape: layouts are legal, allocators keep their books, parts are what they should be."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from peakfold.plan.memory.allocators import Bfc, Caching, Settings, SizeClasses
from peakfold.plan.memory.check import check_placement
from peakfold.plan.memory.layout import lay_out, placed, relaid
from peakfold.plan.memory.parts import parts
from peakfold.plan.memory.planner import plan
from peakfold.plan.memory.pools import events, replay
from peakfold.plan.memory.problem import Buffer, Problem
from peakfold.plan.memory.trace import Request, Trace

HORIZON = 12


@st.composite
def traces(draw):
    requests = []
    for _ in range(draw(st.integers(0, 10))):
        born = draw(st.integers(0, HORIZON - 1))
        dies = draw(st.one_of(st.none(), st.integers(born + 1, HORIZON)))
        requests.append(Request(draw(st.integers(1, 1 << 22)), born, dies, born))
    requests.sort(key=lambda request: request.born)
    beside = draw(st.lists(st.integers(1, 1000), max_size=3))
    return Trace(tuple(requests), tuple("abcdefghijkl"), HORIZON + 1, tuple(beside))


@given(traces())
def test_layouts_are_legal(trace):
    layout = lay_out(trace, time_budget=0.2)
    assert layout.arena >= layout.lower_bound >= trace.lower_bound
    solution = placed(layout)
    if solution is not None:
        assert check_placement(solution, layout.passing) == layout.passing - trace.beside_bytes
    assert layout.arena == layout.passing + trace.kept_bytes
    assert relaid(layout, trace) is not None


@given(traces())
def test_allocators_keep_their_books(trace):
    pools = (Bfc(), Caching(), SizeClasses(), Caching(Settings(64)), Caching(Settings(None, True, 4)))
    for pool in pools:
        found = replay(trace, pool)
        kept = sum(trace.requests[i].size for i in trace.kept)
        assert found.reserved >= found.allocated >= 0
        assert pool.used >= kept
        assert 0 <= found.cached <= found.compaction + (0 if trace.kept else 1)


@settings(max_examples=40, deadline=None)
@given(traces())
def test_no_step_after_a_replay_reserves_more(trace):
    for make in (Bfc, Caching, SizeClasses, lambda: Caching(Settings(None, True))):
        pool = make()
        for step in range(30):
            for i, size in events(trace):
                if size > 0:
                    pool.take(100 * step + i, size)
                else:
                    pool.give(100 * step + i)
            for i in trace.kept if step else ():
                pool.give(100 * (step - 1) + i)
        assert replay(trace, make()).reserved >= pool.reserved


@given(traces())
def test_what_is_taken_is_given_back(trace):
    live = 0
    for _, size in events(trace):
        live += size
        assert live >= 0
    assert live == sum(trace.requests[i].size for i in trace.kept)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=8))
def test_parts_are_never_live_together(rows):
    problem = Problem(tuple(Buffer(str(i), a, a + n, size) for i, (a, n, size) in enumerate(rows)))
    apart = parts(problem)
    assert sorted(i for part in apart for i in part) == list(range(len(rows)))
    for before, after in pairwise(apart):
        end = max(problem.buffers[i].upper for i in before)
        assert end <= min(problem.buffers[i].lower for i in after)
    placement = plan(problem, time_budget=1.0)
    check_placement(problem.placed(placement.offsets), placement.arena)
