"""Decoding against its plain twin, bounds against every possible schedule, plans against the checks."""

import heapq
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import runnable_graphs

from peakfold.cost.costs import Costs, Link
from peakfold.ir.plan import Compute
from peakfold.plan.check import check_plan, check_schedule
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.bound import peak_bound
from peakfold.plan.schedule.code import encode, scratch
from peakfold.plan.schedule.decode import decode
from peakfold.plan.schedule.encode import plan_of
from peakfold.plan.schedule.explore import Explorer
from peakfold.plan.schedule.frame import SINCE, frame, modes_of
from peakfold.plan.schedule.lower import lower, stored
from peakfold.plan.schedule.order import leaves_first
from peakfold.plan.schedule.sequence import sequence
from peakfold.plan.schedule.simulate import simulate_tables


@st.composite
def problems(draw, **options):
    """A graph's tables with random costs."""
    graph = draw(runnable_graphs(**options))
    steps = [node.id for node in graph.nodes if not node.is_view]
    seconds = draw(st.lists(st.integers(1, 9), min_size=len(steps), max_size=len(steps)))
    hidden = draw(st.lists(st.sampled_from([0, 0, 8, 100]), min_size=len(steps), max_size=len(steps)))
    return tabulate(
        graph, Costs(dict(zip(steps, seconds, strict=True)), dict(zip(steps, hidden, strict=True)))
    )


@st.composite
def placed(draw):
    """A frame in one of two orders, and the mode of each of its gaps and tails."""
    tables = draw(problems())
    found = frame(tables)
    if draw(st.booleans()):
        found = frame(tables, leaves_first(found))
    steps = [*found.gap_producer.tolist(), *range(tables.steps)]
    wanted = draw(st.lists(st.integers(0, 12), min_size=len(steps), max_size=len(steps)))
    most = SINCE + len(found.base) - 1
    modes = [min(mode, most) * int(found.droppable[step]) for step, mode in zip(steps, wanted, strict=True)]
    return found, modes


@settings(max_examples=120, deadline=None)
@given(placed(), st.sampled_from(["early", "last"]), st.booleans())
def test_decoding_equals_the_simulated_schedule(case, updates, reuse):
    found, modes = case
    code = encode(found, updates, reuse)
    work = scratch(code)
    outcome = decode(code, work, np.array(modes, np.int16), 50.0, np.inf)
    runs = sequence(found, modes, updates)
    assert work.runs[: outcome.length].tolist() == runs
    schedule = stored(found.tables, runs, reuse)
    timeline = simulate_tables(found.tables, schedule, Link())
    during = [
        held for held, step in zip(timeline.during, timeline.steps, strict=True) if isinstance(step, Compute)
    ]
    assert work.during[: outcome.length].tolist() == during
    assert outcome.peak == timeline.peak
    assert outcome.excess == sum(max(0, held - 50) for held in during)
    assert outcome.seconds == sum(found.tables.seconds[runs])


@settings(max_examples=120, deadline=None)
@given(placed())
def test_a_plan_comes_to_the_runs_that_it_was_made_of(case):
    found, modes = case
    order = tuple(found.tables.nodes[[*found.base, *np.flatnonzero(found.late)]].tolist())
    plan = plan_of(found, modes, order)
    assert sequence(found, modes_of(found, plan)) == sequence(found, modes)
    assert check_plan(found.tables.graph, plan) == []
    schedule = lower(found.tables.graph, plan)
    assert check_schedule(found.tables.graph, schedule) == []
    assert schedule == lower(found.tables.graph, plan)


@settings(max_examples=100, deadline=None)
@given(problems(max_nodes=2, state=False))
def test_no_schedule_is_below_the_bound(tables):
    best = least_peak(tables)
    assert peak_bound(tables, 2000) <= best
    explorer = Explorer(frame(tables), 0)
    explorer.descend(np.inf)
    explorer.anneal(best, np.inf, 300)
    lowest = explorer.lowest()
    assert lowest.peak >= best
    plan = plan_of(explorer.frame, lowest.modes.tolist())
    assert simulate_tables(tables, lower(tables.graph, plan), Link()).peak == lowest.peak


@settings(max_examples=50, deadline=None)
@given(problems())
def test_the_bound_is_below_what_the_search_finds(tables):
    explorer = Explorer(frame(tables), 0)
    explorer.descend(np.inf)
    explorer.anneal(0, np.inf, 300)
    assert peak_bound(tables) <= explorer.lowest().peak


def least_peak(tables):
    """The least peak of all schedules, any number of runs of every step: a search over all that may live."""
    reads = [_row(tables.operand_begin, tables.operands, s) for s in range(tables.steps)]
    makes = [_row(tables.output_begin, tables.outputs, s) for s in range(tables.steps)]
    given = frozenset(np.flatnonzero(tables.producer < 0).tolist())
    wanted = frozenset(np.flatnonzero(tables.is_output).tolist())
    size = tables.nbytes.tolist()
    ways = [
        [
            (int(tables.reuse_output[j]), int(tables.reuse_operand[j]))
            for j in range(*tables.reuse_begin[s : s + 2])
        ]
        for s in range(tables.steps)
    ]
    start = (frozenset(), frozenset())
    queue, known, count = [(tables.resident, 0, start)], {}, itertools.count(1)
    while queue:
        peak, _, (live, done) = heapq.heappop(queue)
        if known.get((live, done), np.inf) <= peak:
            continue
        known[live, done] = peak
        if len(done) == tables.steps and wanted <= live | given:
            return peak
        nexts = [(peak, (live - {v}, done)) for v in live]
        for step in range(tables.steps):
            if not reads[step] <= live | given or makes[step] & live:
                continue
            held = tables.resident + sum(size[v] for v in live | makes[step]) + int(tables.workspace[step])
            nexts.append((max(peak, held), (live | makes[step], done | {step})))
            for new, old in ways[step]:
                if old in live:
                    after = (live | makes[step]) - {old}
                    nexts.append((max(peak, held - size[new]), (after, done | {step})))
        for cost, state in nexts:
            heapq.heappush(queue, (cost, next(count), state))
    raise AssertionError("some step cannot run")


def _row(begin, items, row):
    return frozenset(items[begin[row] : begin[row + 1]].tolist())
