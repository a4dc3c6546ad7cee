"""Searches where parts are faster than the whole, as they are on a CPU: small ones stay in its caches."""

from dataclasses import replace
from math import prod

import pytest
import torch

from peakfold.cost.roofline import estimate
from peakfold.ir.types import TensorType
from peakfold.pipeline.task import Task
from peakfold.plan.fission.solve import Effort, Solver
from peakfold.plan.fission.tree import region_of
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.joint import Joint

STEEP = 1.3
"""Seconds are elements to this power: ``n`` parts take ``n ** (1 - STEEP)`` of the whole's."""


def mlp():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    batch = (torch.randn(512, 16), torch.randn(512, 16))
    return model, lambda m, x, y: (m(x) - y).square().mean(), torch.optim.SGD(model.parameters()), batch


def steep(graph):
    """Costs of a device on which small operators are faster an element."""

    def elements(node):
        kinds = [graph.type(value) for value in (*node.inputs, *node.outputs)]
        return max((prod(kind.shape) for kind in kinds if isinstance(kind, TensorType)), default=0)

    costs = estimate(graph, "rtx3090")
    return replace(
        costs, seconds={node: 1e-9 * elements(graph.node[node]) ** STEEP for node in costs.seconds}
    )


@pytest.fixture(scope="module")
def step():
    graph = Task(*mlp()).capture().graph
    return graph, sum(steep(graph).seconds.values())


def front_of(step, **options):
    """A search of a whole front of a few states."""
    graph, whole = step
    times = (whole, 1.1 * whole)
    return Joint(graph, steep, Goal(None, whole), 60.0, 20, times=times, most=2, measured=True, **options)


def test_a_front_has_plans_that_are_faster_than_the_whole(step):
    search = front_of(step)
    fastest = min(search.run_front().front, key=lambda point: point.seconds)
    assert fastest.plan.regions
    assert fastest.seconds < 0.7 * step[1]
    assert search.times[0] < 0.7 * step[1]
    assert Solver(step[0], steep).nest(fastest.plan).timeline.seconds == pytest.approx(fastest.seconds)


def test_without_a_budget_the_fastest_plan_is_in_parts(step):
    graph, whole = step
    found = Joint(graph, steep, Goal(None, None), 60.0, 20, most=4, measured=True).run()
    assert found.plan.regions
    assert found.seconds < 0.7 * whole


def test_no_number_of_parts_of_the_first_region_is_faster_than_the_fastest_plan(step):
    search = front_of(step)
    search.run_front()
    first = search.visits[0].parts
    (index,) = [index for index, parts in enumerate(first) if parts > 1]
    solver = Solver(step[0], steep, Effort(iterations=20))
    for parts in (2, 4, 8, 16):
        (fastest, *_) = solver.spread((region_of(search.tree.candidates[index], parts),)).points
        assert min(one.seconds for one in search.archive.front) <= fastest.seconds * (1 + 1e-9)


class Ticking:
    """A clock on which a second passes whenever it is read."""

    def __init__(self):
        self.reads = 0

    def __call__(self):
        self.reads += 1
        return float(self.reads)


def test_measuring_operators_takes_no_time_of_the_search(step):
    graph, whole = step
    clock = Ticking()

    def slow(one):
        clock.reads += 100_000
        return steep(one)

    for measured in (False, True):
        search = Joint(
            graph, slow, Goal(None, whole), 500.0, times=(whole, 1.1 * whole), now=clock, measured=measured
        )
        front = search.run_front().front
        assert any(point.plan.regions for point in front) == measured
