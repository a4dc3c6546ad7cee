"""What is small at the border of a region runs once, outside it: the step is equal, and takes less time."""

import pytest
import torch
from tests.torch.test_regions import agree
from torch import nn
from torch.nn import functional

from peakfold.cost.roofline import estimate
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.pipeline.task import Task
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.nested import regions_of
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.program import with_loops
from peakfold.plan.fission.tree import Tree
from peakfold.plan.search.roots import tree_of


@pytest.fixture(scope="module")
def task():
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 4, 3, padding=1),
        nn.InstanceNorm2d(4, affine=True),
        nn.LeakyReLU(0.1, inplace=True),
    ]
    model = nn.Sequential(*layers, nn.Conv2d(4, 5, 3, padding=1), nn.InstanceNorm2d(5, affine=True))
    batch = (torch.randn(5, 3, 24, 24), torch.randint(5, (5, 24, 24)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Task(model, lambda m, x, y: functional.cross_entropy(m(x), y), optimizer, batch)


def trees(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> tuple[Tree, Tree]:
    monkeypatch.setattr("peakfold.plan.fission.small.SMALL", 64)
    costs = estimate(graph, "rtx3090")
    less = tree_of(graph, costs)
    monkeypatch.setattr("peakfold.plan.fission.small.SMALL", 1 << 40)
    return less, tree_of(graph, costs)


def test_regions_without_small_nodes_compute_the_same(task, monkeypatch):
    graph = prepare(task.capture().graph)
    tree, _ = trees(graph, monkeypatch)
    left = [index for index, one in enumerate(tree.candidates) if one.outside]
    assert {"repeat", "sum"} <= {graph.node[run.node].op.packet for run in tree.candidates[left[0]].outside}
    for index, parts in ((left[0], 2), (left[0], 5), (left[1], 2)):
        state = tuple(parts if k == index else 1 for k in range(len(tree.candidates)))
        agree(task, lambda one, s=state: Plan(one.digest, regions=regions_of(prepare(one), tree, s)))


def test_a_part_has_fewer_kernels_and_takes_less_time(task, monkeypatch):
    graph = prepare(task.capture().graph)
    taken = []
    for tree in trees(graph, monkeypatch):
        (body,) = derive(
            graph, regions_of(graph, tree, (2, *(1,) * (len(tree.candidates) - 1)))
        ).bodies.values()
        costs = with_loops(body.graph, estimate(body.graph, "rtx3090"), {})
        taken.append((len(body.graph.nodes), sum(costs.seconds.values())))
    assert taken[0] < taken[1]
    assert taken[0][1] < taken[1][1]
