"""The planner on a chain whose best plans are known, and what it says at its limits."""

from itertools import pairwise

import pytest

from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError
from peakfold.ir.graph import Graph, Input, Node, Op, Origin, Output, State, Value
from peakfold.ir.plan import Commit, Compute, Free, Plan, Recompute
from peakfold.ir.types import tensor
from peakfold.plan.check import require_legal
from peakfold.plan.schedule import explore, planner
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.decode import decode
from peakfold.plan.schedule.dry import dry_modes
from peakfold.plan.schedule.encode import plan_of
from peakfold.plan.schedule.explore import Explorer
from peakfold.plan.schedule.frame import frame
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate

KB = 1024
WIDE, NARROW = tensor(256), tensor(2)


def chain(layers, wide=WIDE):
    """A step with one wide activation and one narrow parameter, which is updated, a layer."""
    x, loss = Input(0, "x", "batch", NARROW), 100 + 3 * layers
    weights = tuple(Input(1 + i, f"w{i}", "parameter", NARROW) for i in range(layers))
    nodes, previous = [], Value(0)

    def add(ident, name, args, type_, phase):
        nodes.append(
            Node(ident, name, Op(f"any.{name}"), args, (), (type_,), (None,), origin=Origin("", "", phase))
        )
        return Value(ident)

    acts = []
    for i in range(layers):
        previous = add(100 + i, f"layer{i}", (previous, Value(1 + i)), wide, "forward")
        acts.append(previous)
    gradient = add(loss, "loss", (previous,), NARROW, "forward")
    for i in reversed(range(layers)):
        args = (gradient, acts[i], acts[i - 1] if i else Value(0), Value(1 + i))
        gradient = add(100 + layers + i, f"back{i}", args, NARROW, "backward")
        add(100 + 2 * layers + i, f"new{i}", (Value(1 + i), gradient), NARROW, "update")
    state = tuple(State(1 + i, Value(100 + 2 * layers + i)) for i in range(layers))
    return Graph((x, *weights), tuple(nodes), (Output("loss", Value(loss)),), state)


def even(graph):
    return Costs({node.id: 1.0 for node in graph.nodes}, {})


def test_without_limits_nothing_is_recomputed():
    graph = chain(8)
    found = planner.optimize(graph, even(graph), iterations=100)
    assert found.plan == Plan(graph.digest)
    assert found.stop_reason == "nothing to do"
    assert found.peak_bytes == simulate(graph, even(graph), lower(graph, found.plan)).peak


def test_each_kept_activation_less_costs_one_more_run():
    graph, layers = chain(8), 8
    costs = even(graph)
    plain = planner.optimize(graph, costs)
    found = planner.optimize(graph, costs, memory=plain.peak_bytes - 3 * KB, iterations=20_000)
    assert found.peak_bytes <= plain.peak_bytes - 3 * KB
    assert plain.seconds + 3 <= found.seconds <= plain.seconds + 5
    assert found.lower_bound_bytes <= found.peak_bytes
    assert len(graph.nodes) == 3 * layers + 1


def test_the_lowest_peak_is_near_the_bound():
    graph = chain(8)
    bound = planner.optimize(graph, even(graph)).lower_bound_bytes
    found = planner.optimize(graph, even(graph), latency=100.0, iterations=60_000)
    assert found.peak_bytes <= bound + 2 * KB


def test_whole_stretches_are_dropped_near_the_least_bytes():
    graph = chain(24)
    found = planner.optimize(graph, even(graph), latency=1000.0, iterations=40_000)
    assert found.peak_bytes <= found.lower_bound_bytes + 2.1 * KB


def test_the_least_bytes_are_had_without_a_search_by_keeping_next_to_nothing(monkeypatch):
    graph = chain(12)
    budget = planner.optimize(graph, even(graph)).lower_bound_bytes + KB + KB // 16
    found = planner.optimize(graph, even(graph), memory=budget, iterations=1)
    assert found.peak_bytes <= budget
    assert found.seconds > 1.5 * len(graph.nodes)
    below = found.lower_bound_bytes - 1
    front = planner.optimize_front(graph, even(graph), budgets=[20 * KB, budget, below], iterations=1)
    assert [point is None for point in front.points] == [False, False, True]
    with pytest.raises(InfeasibleError):
        planner.optimize(graph, even(graph), memory=budget, latency=1.01 * len(graph.nodes), iterations=1)
    monkeypatch.setattr(explore, "dry_modes", lambda *given: ())
    with pytest.raises(InfeasibleError):
        planner.optimize(graph, even(graph), memory=budget, iterations=1)


def test_plans_that_keep_next_to_nothing_are_legal_and_come_to_what_is_decoded():
    graph = chain(9)
    explorer = Explorer(frame(tabulate(graph, even(graph))), 0)
    found = list(dry_modes(explorer.frame, explorer.slots, explorer.start))
    assert len({modes.tobytes() for modes in found}) == 4
    for modes in found:
        outcome = decode(explorer.code, explorer.scratch, modes, 0, float("inf"))
        schedule = lower(graph, plan_of(explorer.frame, modes.tolist()))
        require_legal(graph, schedule)
        assert simulate(graph, even(graph), schedule).peak == outcome.peak
        assert explorer.driest <= outcome.peak
    assert explorer.driest < explorer.plain.peak / 2


def test_a_time_limit_is_kept():
    graph = chain(8)
    found = planner.optimize(graph, even(graph), latency=27.0, iterations=20_000)
    plain = planner.optimize(graph, even(graph))
    assert plain.seconds == 25.0
    assert found.seconds <= 27.0
    assert found.peak_bytes < plain.peak_bytes


def test_the_same_seed_and_iterations_give_the_same_plan():
    graph = chain(12)
    first, second = (
        planner.optimize(graph, even(graph), latency=45.0, iterations=5000, seed=3) for _ in "ab"
    )
    assert (first.plan, first.states, first.front) == (second.plan, second.states, second.front)
    assert first.stop_reason == "iterations"


def test_seconds_never_fall_with_the_budget():
    graph = chain(12)
    front = planner.optimize_front(graph, even(graph), count=12, iterations=30_000)
    found = [point for point in front.points if point is not None]
    assert len(found) >= 8
    assert all(a.seconds <= b.seconds for a, b in pairwise(found))
    for budget, point in zip(front.budgets, front.points, strict=True):
        assert point is None or point.peak_bytes <= budget
        assert (
            point is None or simulate(graph, even(graph), lower(graph, point.plan)).peak == point.peak_bytes
        )


def test_a_budget_below_the_bound_is_refused_with_what_is_live():
    graph = chain(4)
    with pytest.raises(InfeasibleError) as caught:
        planner.optimize(graph, even(graph), memory=KB, iterations=1000)
    error = caught.value
    assert KB < error.lower_bound_bytes <= error.lowest_peak_bytes
    assert "layer" in error.where
    assert f"allow at least {error.lowest_peak_bytes} bytes" in str(error)


def test_an_interrupted_search_gives_its_best():
    def interrupt(_):
        raise KeyboardInterrupt

    graph = chain(8)
    plain = planner.optimize(graph, even(graph))
    found = planner.optimize(graph, even(graph), memory=plain.peak_bytes - KB, progress=interrupt)
    assert found.stop_reason == "interrupted"
    assert found.peak_bytes <= plain.peak_bytes - KB


def test_progress_is_told():
    graph, seen = chain(8), []
    planner.optimize(graph, even(graph), latency=26.0, iterations=6000, progress=seen.append)
    assert [state.share for state in seen] == [1 / 3, 2 / 3, 1.0]
    assert all(a.states < b.states for a, b in pairwise(seen))


def test_inference_and_empty_graphs_are_planned():
    x = Input(0, "x", "batch", NARROW)
    empty = Graph((x,), (), (Output("y", Value(0)),))
    assert planner.optimize(empty, Costs({}, {}), latency=1.0, iterations=10).peak_bytes == NARROW.nbytes
    graph = chain(3)
    forward = Graph(graph.inputs, graph.nodes[:4], graph.outputs)
    assert planner.optimize(forward, even(forward), memory=10 * KB, iterations=10).seconds == 4.0


def test_each_update_runs_once_its_value_is_read_no_more():
    graph = chain(3)
    early = [step.run.node for step in lower(graph, Plan(graph.digest)).steps if isinstance(step, Compute)]
    assert early == [100, 101, 102, 109, 105, 108, 104, 107, 103, 106]
    again = Plan(graph.digest, (Recompute(100, 104), Recompute(101, 104)))
    runs = [step.run.node for step in lower(graph, again).steps if isinstance(step, Compute)]
    assert runs == [100, 101, 102, 109, 105, 108, 100, 101, 104, 107, 103, 106]


def test_a_new_value_is_copied_over_the_old_one_and_freed():
    graph = chain(1)
    steps = lower(graph, Plan(graph.digest)).steps
    at = next(i for i, step in enumerate(steps) if isinstance(step, Commit))
    assert steps[at] == Commit(1)
    assert [type(step) for step in steps[at + 1 :]] == [Free, Free]
