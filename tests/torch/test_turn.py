"""Regions around the turn, in finer parts of the batch inside each part: they take less, and are equal."""

import pytest
import torch

from peakfold.cost.roofline import estimate
from peakfold.pipeline import prove
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.task import Task
from peakfold.plan.fission.axes import Axes
from peakfold.plan.fission.candidates import hottest, largest_in
from peakfold.plan.fission.effort import Effort
from peakfold.plan.fission.grow import Ground
from peakfold.plan.fission.nested import regions_of
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.solve import Solver
from peakfold.plan.fission.tree import Tree
from peakfold.plan.fission.turn import turned
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.frame import frame
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.footprint import Ground as Items
from peakfold.plan.search.roots import Roots, tree_of
from peakfold.plan.search.sketch import Sketch
from peakfold.plan.search.starts import wide
from peakfold.plan.search.states import State


class Hourglass(torch.nn.Module):
    """Few channels at full resolution, many at half of it, and what the first layer made read by the last."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.down = torch.nn.Conv2d(4, 8, 2, stride=2)
        self.up = torch.nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = torch.nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x):
        wide = self.first(x).relu()
        return self.last(torch.cat([wide, self.up(self.down(wide).tanh()).relu()], 1))


@pytest.fixture(scope="module")
def task():
    torch.manual_seed(0)
    model = Hourglass()
    loss = lambda m, x, y: (m(x) - y).square().mean()  # noqa: E731
    batch = (torch.randn(12, 3, 8, 8), torch.randn(12, 3, 8, 8))
    return Task(model, loss, torch.optim.SGD(model.parameters(), 0.1), batch)


def costs_of(graph):
    return estimate(graph, "rtx3090")


def tree_for(task):
    """Everything along the batch, and what is around the turn."""
    captured, axes = task.capture(), Axes()
    graph = prepare(captured.graph)
    ground, hot = Ground(axes.reading(graph)), set(graph.storages())
    batch = hottest(graph, hot, axes.of(graph))[0]
    everything = largest_in(ground, hot, batch, dict.fromkeys(graph.node, 0), "widest")
    return captured, graph, Tree((next(everything), *turned(ground, hot, batch))), axes


def of(tree, changed):
    return tuple(changed.get(at, 1) for at in range(len(tree.candidates)))


def test_it_has_the_end_of_the_forward_and_the_backward_of_all_that_is_made_there(task):
    _, graph, tree, _ = tree_for(task)
    _, *found = tree.candidates
    assert found
    place = {node.id: at for at, node in enumerate(graph.nodes)}
    for one in found:
        phases = {graph.node[run.node].origin.phase for run in one.runs}
        assert phases == {"forward", "backward"}
        inside = {run.node for run in one.runs}
        first = min(place[ident] for ident in inside)
        made = [
            n for n in graph.nodes if n.origin.phase == "forward" and not n.is_view and n.id not in inside
        ]
        assert all(place[n.id] < first or not n.types[0].shape for n in made)
        assert not any(run.k for run in one.runs)


def test_finer_parts_take_less_and_are_equal(task):
    captured, graph, tree, axes = tree_for(task)
    outer, *turns = range(len(tree.candidates))
    assert tree.turns == tuple(turns)
    solver = Solver(captured.graph, costs_of, Effort(iterations=5))
    plain = solver.solve(regions_of(graph, tree, of(tree, {outer: 3}), axes))
    finer = [
        solver.solve(regions_of(graph, tree, of(tree, {outer: 3, k: parts}), axes))
        for k in turns[-1:]
        for parts in (2, 4)
        if tree.fits(k, of(tree, {outer: 3, k: parts}))
    ]
    assert {2, 4} <= {one.plan.regions[0].plan.regions[0].parts for one in finer}
    least = min(finer, key=lambda one: one.peak_bytes)
    assert least.peak_bytes < plain.peak_bytes
    program = emit_plan(captured, least.plan, costs_of(captured.graph), costs_of=costs_of)
    assert prove.equal(task, program, prove.watch(task, None), prove.watch(task, program)).ok


def test_seconds_of_finer_parts_are_those_of_so_many_along_the_whole_batch(task):
    _, graph, tree, axes = tree_for(task)
    tables = tabulate(graph, costs_of(graph))
    items = Items.of(frame(tables), costs_of(graph).link.copy)
    sketch = Sketch(items, tree, Goal(None, None), axes, tables.resident, costs_of)
    starts = [one.parts for one in wide(tree, State(tree.disabled, 0))]
    turned_in = [parts for parts in starts if parts[0] > 1 and max(parts[1:]) > 1]
    assert turned_in
    for parts in turned_in:
        (inner,) = (k for k in tree.turns if parts[k] > 1)
        assert tree.fits(inner, parts)
        for pair in sketch.unmeasured(parts):
            sketch.measure(*pair)
        assert not sketch.unmeasured(parts)
        sketch.measure(inner, parts[0])
        alone, nested = sketch.estimate(of(tree, {0: parts[0]})), sketch.estimate(parts)
        added = sketch._exact[inner, tree.counts(parts)[inner]] - sketch._exact[inner, parts[0]]
        assert nested.seconds == pytest.approx(alone.seconds + max(added, 0.0))
        assert nested.peak < alone.peak


def test_the_search_has_them_where_costs_are_measured(task):
    graph = prepare(task.capture().graph)
    for layers in (True, False):
        tree = tree_of(graph, costs_of(graph), Roots(layers=layers, tree=False))
        assert bool(tree.turns) == layers
