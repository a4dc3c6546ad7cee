"""Order and addresses together, against every legal order of small programs."""

from itertools import permutations

import pytest

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Input, Node, Op, Output, Value
from peakfold.ir.plan import Plan
from peakfold.ir.types import tensor
from peakfold.plan.check import check_plan, check_schedule
from peakfold.plan.memory.joint import improve_order
from peakfold.plan.memory.layout import lay_out
from peakfold.plan.memory.lifetimes import predicted
from peakfold.plan.schedule.lower import lower

SIZES = ((256, 16, 256, 16, 256, 16), (64, 300, 8, 200, 16, 128), (512, 8, 8, 512, 8, 8))


def program(sizes):
    """Three pairs (large, small), then a join of the small ones; all large ones stand first."""
    order = (0, 2, 4, 1, 3, 5)
    nodes = []
    for i in order:
        reads = (Value(100),) if i % 2 == 0 else (Value(i - 1),)
        nodes.append(Node(i, f"n{i}", Op("aten.work.default"), reads, (), (tensor(sizes[i]),), (None,)))
    joined = tuple(Value(i) for i in (1, 3, 5))
    nodes.append(Node(6, "y", Op("aten.join.default"), joined, (), (tensor(4),), (None,)))
    return Graph((Input(100, "x", "batch", tensor(4)),), tuple(nodes), (Output("y", Value(6)),))


def arena(graph, order):
    plan = Plan(graph.digest, order=tuple(order))
    return lay_out(predicted(graph, lower(graph, plan), Costs({}, {}))).arena


def best(graph):
    legal = (
        order
        for order in permutations(range(6))
        if all(order.index(i) < order.index(i + 1) for i in (0, 2, 4))
    )
    return min(arena(graph, (*order, 6)) for order in legal)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_best_order_of_all_is_found(sizes):
    graph = program(sizes)
    found = improve_order(graph, Costs({}, {}), Plan(graph.digest), moves=300)
    assert found.layout.arena == best(graph) == arena(graph, found.plan.order)
    assert check_plan(graph, found.plan) == []
    assert check_schedule(graph, lower(graph, found.plan)) == []


def test_it_ends_where_the_capacity_is_reached():
    graph = program(SIZES[0])
    found = improve_order(graph, Costs({}, {}), Plan(graph.digest), capacity=1 << 20)
    assert (found.moves, found.plan.order) == (0, ())


def test_the_same_seed_gives_the_same_order():
    graph = program(SIZES[1])
    one, two = (improve_order(graph, Costs({}, {}), Plan(graph.digest), moves=50, seed=3) for _ in range(2))
    assert one.plan == two.plan
