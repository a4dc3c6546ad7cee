"""Steps that offload, in an arena: its bytes here and on the host, the same bits, own tensors stay."""

from dataclasses import replace

import pytest
from tests.torch.test_arena import task
from tests.torch.test_offload import random_offloads
from tests.torch.test_plans import TARGETS, random_plan

from peakfold.bridge.runtime import measure
from peakfold.cost.costs import Costs, Link
from peakfold.errors import InfeasibleError, PlanError
from peakfold.ir.plan import Compute, Offload, Plan
from peakfold.ir.text import print_plan
from peakfold.pipeline.optimize import optimize
from peakfold.pipeline.request import request
from peakfold.pipeline.task import Task
from peakfold.plan.memory.host import host_layout, moves
from peakfold.plan.memory.lifetimes import step_name
from peakfold.plan.schedule import offload_search, offloading, planner
from peakfold.plan.schedule.lower import lower


def plan_of(graph, seed, own):
    """Random offloads: of the caller's own tensors, or of what the step allocates."""
    gaps = (gap for gap in random_offloads(graph, seed) if (gap.value.node in graph.input) == own)
    return Plan(graph.digest, offload=tuple(gaps))


def optimized(of, graph, plan, where="host", memory="arena:1MiB"):
    text = print_plan(plan, graph)
    asked = request(memory, None, 1.0, None, 0, "eager", True, plan=text, offload=where, rewrite=False)
    return optimize(of, asked)


@pytest.mark.parametrize(("seed", "where"), [(0, "host"), (1, "host"), (2, "file")])
def test_both_arenas_of_a_step_that_offloads_are_kept_to_the_byte(seed, where, tmp_path, monkeypatch):
    renewed = []
    monkeypatch.setattr(measure, "_renew", renewed.append)
    of = task()
    graph = of.capture().graph
    plan = plan_of(graph, seed, own=False)
    outcome = optimized(of, graph, plan, str(tmp_path) if where == "file" else where)
    report, planned = outcome.report, host_layout(graph, lower(graph, plan))
    arena = report.arena
    assert renewed == [], "no tensor of the caller leaves the device"
    assert report.equal.bit_equal
    assert report.optimized.predicted_peak_bytes == report.optimized.peak_bytes
    assert (arena.runs, arena.ordinary, arena.served) == (True, 0, arena.requests)
    assert [part.nbytes for part in arena.parts] == [arena.nbytes, planned.nbytes]
    assert report.optimized.host_bytes == arena.host_bytes == planned.nbytes > 0
    ends = ends_on_the_host(outcome.step, of.batch)
    assert len(ends) == len(arena.moves) > 0
    assert max(ends) == arena.host_bytes
    assert ends == [move.offset + move.nbytes for move in arena.moves]
    assert outcome.step.arena.use.high_water == arena.nbytes == outcome.step.arena_bytes


def ends_on_the_host(step, batch):
    """Run a step, and return where each of its copies out ends in the arena on the host."""
    carrier = step._programs[0]._function.__globals__["host"].carrier
    ends, copy = [], carrier.out

    def out(flat, offset):
        ends.append(offset + flat.nbytes)
        return copy(flat, offset)

    carrier.out = out
    step(*batch)
    return ends


@pytest.mark.parametrize("memory", ["arena:1MiB", "arena:fit"])
def test_own_tensors_cannot_be_offloaded_beside_an_arena(memory):
    of = task()
    graph = of.capture().graph
    plan = plan_of(graph, 0, own=True)
    with pytest.raises(PlanError) as caught:
        optimized(of, graph, plan, memory=memory)
    message = str(caught.value)
    assert message.startswith("arena: the model's own tensors cannot wait on the host beside an arena")
    assert graph.name_of(plan.offload[0].value) in message


def test_the_search_moves_own_tensors_only_where_it_may(monkeypatch):
    monkeypatch.setattr(offloading, "SMALLEST", 1)
    graph = task(64, 32).capture().graph
    costs = Costs({node.id: 1.0 for node in graph.nodes if not node.is_view}, {}, link=Link(1e9, 0.0, 1e9))
    with pytest.raises(InfeasibleError):
        planner.optimize(graph, costs, memory=25_200, iterations=100)
    own = {}
    for lends in (True, False):
        found = offload_search.optimize(graph, costs, memory=25_200, lends=lends, iterations=100)
        own[lends] = {gap.value.node in graph.input for gap in found.plan.offload}
        assert found.peak_bytes <= 25_200
    assert True in own[True]
    assert own[False] == {False}


def test_an_arena_that_only_offloading_keeps_to(monkeypatch):
    monkeypatch.setattr(offloading, "SMALLEST", 1)
    limits = ("arena:18600", None, 2.0, 300, 0, "eager", True)
    with pytest.raises(InfeasibleError):
        optimize(task(64, 32), request(*limits))
    of = task(64, 32)
    outcome = optimize(of, request(*limits, offload="host"))
    report = outcome.report
    assert report.arena.nbytes <= 18600
    assert report.arena.moves
    assert report.arena.host_bytes == max(move.offset + move.nbytes for move in report.arena.moves)
    assert report.optimized.predicted_peak_bytes == report.optimized.peak_bytes
    assert (report.equal.bit_equal, report.arena.ordinary) == (True, 0)


def test_each_move_is_named_with_the_steps_at_its_ends():
    graph = task().capture().graph
    assert not repeated_ends(graph, plan_of(graph, 1, own=False))


def test_a_repeated_run_at_the_end_of_a_move_is_named_as_one():
    graph = Task.of(TARGETS["convolutions"]()).capture().graph
    plan = plan_of(graph, 0, own=False)
    assert repeated_ends(graph, replace(random_plan(graph, 0), offload=plan.offload))


def repeated_ends(graph, plan):
    """Ends of moves at repeated runs, once all ends are seen to be in order."""
    schedule = lower(graph, plan)
    found = moves(graph, schedule)
    assert [move.name for move in found] == [
        graph.name_of(step.buffer.value) for step in schedule.steps if isinstance(step, Offload)
    ]
    order = [step_name(graph, step) for step in schedule.steps if isinstance(step, Compute)]
    assert len(set(order)) == len(order)
    for move in found:
        rows = [order.index(name) for name in (move.out, move.gone, move.fetch, move.back)]
        assert rows == sorted(rows)
        assert rows[0] < rows[-1]
    ends = (name for move in found for name in (move.out, move.gone, move.fetch, move.back))
    return [name for name in ends if name.endswith(" (again)")]
