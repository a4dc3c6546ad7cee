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
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.grow import Ground
from peakfold.plan.fission.layered import LAYERS, cuts, layered
from peakfold.plan.fission.nested import regions_of
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.readers import readers
from peakfold.plan.fission.solve import Effort, Solver
from peakfold.plan.fission.tree import region_of, rest_of
from peakfold.plan.fission.widest import widest
from peakfold.plan.search.roots import Roots, tree_of
from peakfold.workloads import load_target

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
    candidate, *_ = layered(ground, hot, axis)
    assert candidate.source == "layers"
    assert min(count, LAYERS) / 2 <= len(candidate.rest) <= LAYERS + 1
    runs = candidate.every
    assert len(runs) == len(set(runs))


def test_weights_are_updated_layer_by_layer_and_all_is_equal():
    task = blocks(6)
    captured, graph, ground, hot, axis = prepared_of(task)
    candidate, *_ = layered(ground, hot, axis)
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


def test_what_passes_from_layer_to_layer_is_no_wider_than_a_layers_input():
    _, graph, ground, hot, axis = prepared_of(blocks(6))
    candidate, *_ = layered(ground, hot, axis)
    loops = [{run.node for run in loop if not run.k} for loop in loops_of(candidate)]
    narrow = graph.nbytes(graph.node[cuts(graph, ground.reach, axis)[0]].outputs[0])
    for at, loop in enumerate(loops):
        for value in (value for ident in loop for value in graph.node[ident].outputs):
            if graph.node[value.node].origin.phase == "backward":
                elsewhere = {node.id for node in readers(graph, value)} - loop
                passed = any(elsewhere & other for k, other in enumerate(loops) if k != at)
                assert not passed or graph.nbytes(value) <= narrow


def test_the_first_layers_alone_are_apart_and_the_rest_makes_nothing_again():
    _, _, ground, hot, axis = prepared_of(blocks(8))
    found = list(layered(ground, hot, axis))
    again = [{run for run in one.every if run.k} for one in found]
    once = [{run for run in one.every if not run.k} for one in found]
    deepest = max(again, key=len)
    assert all(runs <= deepest for runs in again)
    assert any(
        runs < deepest and made >= once[again.index(deepest)] for runs, made in zip(again, once, strict=True)
    )


def test_regions_are_nested_in_each_loop_of_a_candidate():
    graph, axes = prepare(Task.of(load_target("gptneo", size="tiny")).capture().graph), Axes()
    tree = tree_of(graph, costs_of(graph), Roots(layers=True), axes)
    layers = [k for k, one in enumerate(tree.candidates) if one.source == "layers"]
    start = tree.disabled
    inside = [
        (outer, k)
        for outer in layers
        for k in range(len(start))
        if tree.loop_of(k, outer) is not None and tree.fits(k, of(start, {outer: 2}))
    ]
    assert inside
    outer, inner = inside[0]
    regions = regions_of(graph, tree, of(start, {outer: 2, inner: 2}), axes)
    nested = [region for region in regions if region.plan is not None and region.plan.regions]
    assert len(regions) == len(tree.loops[outer])
    assert len(nested) == 1
    bodies = list(derive(graph, regions, axes).bodies.values())
    assert [len(body.derived.bodies) for body in bodies].count(1) == 1
    assert sum(len(body.derived.bodies) for body in bodies) == 1


def of(parts, changed):
    return tuple(changed.get(at, count) for at, count in enumerate(parts))


def loops_of(candidate):
    return [candidate.runs, *(piece.runs for piece in candidate.rest)]
