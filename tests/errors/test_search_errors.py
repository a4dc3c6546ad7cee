"""What a search says when it ends without a plan: why, the lowest peak, the bound, and what to do."""

import pytest

from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError
from peakfold.ir.graph import Graph, Input, Node, Op, Output, Value
from peakfold.ir.types import tensor
from peakfold.plan.schedule import planner

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
    assert error.hint == "allow at least 1.2 s"


def test_both_limits_are_named_and_either_may_give_way():
    error = refused(memory=TIGHT, latency=1.21, iterations=50)
    assert error.expected == "a peak of 16.0 kB and 1.21 s"
    assert error.hint.startswith(f"allow at least {error.lowest_peak_bytes} bytes, or more seconds")


def test_bytes_of_small_programs_are_read_in_kilobytes():
    error = refused(memory=TIGHT, time_budget=0.0)
    assert "bound 16.0 kB" in error.got
    assert "4.0 kB" in error.where
    assert "0.0 MB" not in str(error)
