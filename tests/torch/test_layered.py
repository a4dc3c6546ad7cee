"""Loops layer by layer: each layer's weights are updated before the gradients of the next are made."""

from itertools import pairwise

import pytest
import torch

from peakfold.cost.roofline import estimate
from peakfold.ir.plan import Region
from peakfold.pipeline import prove
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.task import Task
from peakfold.plan.fission.axes import Axes
from peakfold.plan.fission.candidates import hottest
from peakfold.plan.fission.grow import Ground
from peakfold.plan.fission.layered import LAYERS, cuts, layered
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.solve import Effort, Solver
from peakfold.plan.fission.tree import region_of, rest_of
from peakfold.plan.fission.widest import widest

PARTS = 4


class Block(torch.nn.Module):
    """What is added to its input, by way of something wider."""

    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def blocks(count, width=64):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block(width) for _ in range(count)))
    batch = (torch.randn(64, width), torch.randn(64, width))
    loss = lambda m, x, y: (m(x) - y).square().mean()  # noqa: E731
    return Task(model, loss, torch.optim.SGD(model.parameters(), 0.1), batch)


def plain(*widths):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(widths)))
    batch = (torch.randn(64, widths[0]), torch.randn(64, widths[-1]))
    loss = lambda m, x, y: (m(x) - y).square().mean()  # noqa: E731
    return Task(model, loss, torch.optim.SGD(model.parameters(), 0.1), batch)


def prepared_of(task):
    captured = task.capture()
    graph = prepare(captured.graph)
    ground = Ground(Axes().reading(graph))
    hot = set(graph.storages())
    axis = next(one for one in hottest(graph, hot, Axes().of(graph)) if one.name == "batch")
    return captured, graph, ground, hot, axis


def costs_of(graph):
    return estimate(graph, "rtx3090")


@pytest.mark.parametrize("count", [3, 6, 20])
def test_cuts_are_where_nothing_but_the_input_of_the_next_layer_lives(count):
    _, graph, ground, hot, axis = prepared_of(blocks(count))
    found = cuts(graph, ground.reach, axis)
    assert count - 1 <= len(found) <= count + 1
    (candidate,) = layered(ground, hot, axis)
    assert candidate.source == "layers"
    assert min(count, LAYERS) / 2 <= len(candidate.rest) <= LAYERS + 1
    runs = candidate.every
    assert len(runs) == len(set(runs))


def test_weights_are_updated_layer_by_layer_and_all_is_equal():
    task = blocks(6)
    captured, graph, ground, hot, axis = prepared_of(task)
    (candidate,) = layered(ground, hot, axis)
    regions = (region_of(candidate, PARTS), *rest_of(candidate, PARTS))
    effort = Effort(iterations=20)
    by_layer = min(
        Solver(captured.graph, costs_of, effort).spread(regions).points, key=lambda one: one.peak_bytes
    )
    whole = Region("batch", PARTS, widest(graph, axis))
    at_once = min(
        Solver(captured.graph, costs_of, effort).spread((whole,)).points, key=lambda one: one.peak_bytes
    )
    assert by_layer.peak_bytes < 0.8 * at_once.peak_bytes
    costs = costs_of(captured.graph)
    program = emit_plan(captured, by_layer.plan, costs, costs_of=costs_of)
    assert prove.equal(task, program, prove.watch(task, None), prove.watch(task, program)).ok


def test_what_has_no_layers_has_no_such_candidate():
    _, _, ground, hot, axis = prepared_of(plain(16, 16))
    assert not list(layered(ground, hot, axis))
