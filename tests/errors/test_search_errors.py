"""What a search says when it ends without a plan: why, the lowest peak, the bound, and what to do."""

import pytest

from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError, UsageError
from peakfold.ir.graph import Graph, Input, Node, Op, Output, Value
from peakfold.ir.plan import Plan
from peakfold.ir.types import tensor
from peakfold.pipeline.request import request
from peakfold.plan.memory import Buffer, Problem, plan
from peakfold.plan.memory.joint import improve_order
from peakfold.plan.schedule import offload_search, planner
from peakfold.plan.search import joint

LAYERS = 60
UNIT = 4000
"""Bytes of each activation."""


def ladder():
    """A chain forwards, and one backwards that reads every activation: kept or computed again."""
    wide, nodes = tensor(UNIT // 4), []

    def add(name, *args):
        nodes.append(
            Node(1 + len(nodes), f"{name}{len(nodes)}", Op(f"any.{name}"), args, (), (wide,), (None,))
        )
        return Value(nodes[-1].id)

    acts = [Value(0)]
    for _ in range(LAYERS):
        acts.append(add("layer", acts[-1]))
    gradient = acts[-1]
    for act in reversed(acts[:-1]):
        gradient = add("back", gradient, act)
    return Graph((Input(0, "x", "batch", wide),), tuple(nodes), (Output("loss", gradient),))


GRAPH = ladder()
COSTS = Costs({node.id: 0.01 for node in GRAPH.nodes}, {})
PLAIN = planner.optimize(GRAPH, COSTS)
TIGHT = PLAIN.lower_bound_bytes
"""A budget that no plan was proven to miss, and that no short search keeps."""


def refused(**limits):
    with pytest.raises(InfeasibleError) as caught:
        planner.optimize(GRAPH, COSTS, **limits)
    error = caught.value
    assert error.exit_code == 3
    assert error.lower_bound_bytes == PLAIN.lower_bound_bytes
    assert error.lowest_peak_bytes >= error.lower_bound_bytes
    return error


def interrupt(_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("limits", "end"),
    [
        ({"progress": interrupt}, "the search was interrupted"),
        ({"time_budget": 0.0}, "the time of the search ended"),
        ({"iterations": 50}, "the iterations of the search ended"),
    ],
)
def test_a_search_that_is_cut_short_says_so(limits, end):
    error = refused(memory=TIGHT, **limits)
    assert error.what == f"no program within the budget was found: {end}"
    assert error.hint == f"allow at least {error.lowest_peak_bytes} bytes, or a longer search"


def test_a_budget_below_the_bound_is_said_to_be_impossible():
    error = refused(memory=TIGHT - 1, iterations=50)
    assert "every program needs 16.0 kB" in str(error)
    assert "longer search" not in str(error)


def test_a_time_that_no_program_keeps_is_said_to_be_impossible():
    error = refused(latency=1.0, iterations=50)
    assert "every program needs 1.2 s" in str(error)
    assert error.hint == "allow at least 1.2 s, 1.20 times as much"


@pytest.mark.parametrize("latency", [0.0, 5e-324, 1e-9])
def test_a_limit_that_is_no_time_at_all_has_no_ratio(latency):
    assert refused(latency=latency, iterations=50).hint == "allow at least 1.2 s"


def test_both_limits_are_named_and_either_may_give_way():
    error = refused(memory=TIGHT, latency=1.21, iterations=50)
    assert error.expected == "a peak of 16.0 kB and 1.21 s"
    assert error.hint.startswith(f"allow at least {error.lowest_peak_bytes} bytes, or more seconds")


def test_bytes_of_small_programs_are_read_in_kilobytes():
    error = refused(memory=TIGHT, time_budget=0.0)
    assert "bound 16.0 kB" in error.got
    assert "4.0 kB" in error.where
    assert "0.0 MB" not in str(error)


SEARCHES = {
    "planner": lambda seed: planner.optimize(GRAPH, COSTS, seed=seed),
    "front": lambda seed: planner.optimize_front(GRAPH, COSTS, budgets=(TIGHT,), seed=seed),
    "offloads": lambda seed: offload_search.optimize(GRAPH, COSTS, memory=TIGHT, seed=seed),
    "joint": lambda seed: joint.optimize(GRAPH, COSTS, lambda _: COSTS, seed=seed),
    "placement": lambda seed: plan(Problem((Buffer("a", 0, 1, 8),)), seed=seed),
    "order": lambda seed: improve_order(GRAPH, COSTS, Plan(GRAPH.digest), seed=seed),
    "request": lambda seed: request(None, None, 1, None, seed, "eager", True),
}


@pytest.mark.parametrize("seed", [-1, 2**63])
@pytest.mark.parametrize("search", SEARCHES)
def test_seeds_out_of_range_are_refused_everywhere(search, seed):
    with pytest.raises(UsageError) as caught:
        SEARCHES[search](seed)
    assert f"the seed is out of range\n  expected: 0 <= seed < 2**63\n  got: {seed}" in str(caught.value)
