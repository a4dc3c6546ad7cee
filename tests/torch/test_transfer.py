"""A plan is carried over to another capture of its program: regions in regions too."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional

from peakfold.cost.costs import Costs
from peakfold.cost.roofline import estimate
from peakfold.errors import PlanError
from peakfold.ir.plan import Plan, Region
from peakfold.pipeline.exact import Precise
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.task import Task
from peakfold.pipeline.transfer import transfer
from peakfold.plan.fission.axes import anchor_of
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.nested import regions_of
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.widest import widest
from peakfold.plan.search.roots import tree_of
from peakfold.workloads.load import load_target

MOST = 2


@pytest.mark.parametrize("name", ["bert", "unet"])
def test_to_the_same_program_a_plan_stays_what_it_is(name):
    graph = Task.of(load_target(name, size="tiny", optimizer="sgd")).capture().graph
    prepared = prepare(graph)
    tree = tree_of(prepared, estimate(prepared, "rtx3090"))
    count, nested = len(tree.candidates), 0
    for outer, inner in product(range(count), repeat=2):
        try:
            regions = regions_of(prepared, tree, tuple(2 if k in (outer, inner) else 1 for k in range(count)))
        except PlanError:
            continue
        if not any(region.plan is not None and region.plan.regions for region in regions):
            continue
        if not _is_legal(prepared, regions):
            continue
        plan = Plan(graph.digest, regions=regions)
        assert transfer(plan, graph, graph) == plan
        nested += 1
        if nested == MOST:
            return
    assert nested


def _is_legal(graph, regions):
    try:
        derive(graph, regions)
    except PlanError:
        return False
    return True


def _along(graph, name):
    axis = next(one for one in components(graph) if one.name == name)
    return axis, Region(axis.name, 2, widest(graph, axis))


def _classifier(loss_fn, classes):
    model = nn.Linear(3, classes)
    batch = torch.randn(8, 3), torch.randint(classes, (8,))
    return Task(model, loss_fn, torch.optim.SGD(model.parameters(), lr=0.1), batch)


def test_a_part_has_few_rows_where_the_whole_has_many():
    # 64 places are 16 for each of 4 rows, and fewer for each of 8: a softmax is taken apart of the part alone
    task = _classifier(lambda model, x, labels: functional.cross_entropy(model(x), labels), 64)
    graph = task.capture().graph
    whole = prepare(graph)
    _, region = _along(whole, "batch")
    (body,) = derive(whole, (region,)).bodies.values()
    assert any(node.op.packet == "_log_softmax" for node in body.part.nodes)
    assert not any(node.op.packet == "_log_softmax" for node in prepare(body.part).nodes)
    _, inner = _along(body.part, "axis of batch.0.part")
    region = replace(region, plan=Plan(body.part.digest, regions=(inner,)))
    plan = Plan(graph.digest, regions=(region,))
    assert transfer(plan, graph, graph) == plan
    double = Precise(task, 2).of(emit_plan(task.capture(), plan, Costs({}, {})))
    assert double is not None
    assert double.program.plan.regions[0].plan.regions


def _in_bfloat16(model, x, labels):
    return functional.cross_entropy((model(x).bfloat16() * 3).float(), labels)


def test_an_anchor_may_be_a_cast_that_a_program_in_float64_lacks():
    task = _classifier(_in_bfloat16, 5)
    captured = task.capture()
    whole = prepare(captured.graph)
    axis, region = _along(whole, "batch")
    casts = {node.id for node in whole.nodes if node.op.packet == "_to_copy"} & {r.node for r in region.runs}
    anchors = [anchor_of(vertex) for vertex in axis.members if vertex[0].node in casts]
    assert len(anchors) == 4
    for anchor in anchors:
        plan = Plan(captured.graph.digest, regions=(replace(region, anchor=anchor),))
        double = Precise(task, 2).of(emit_plan(captured, plan, Costs({}, {})))
        assert double is not None
        assert double.task.widened
        assert double.program.plan.regions[0].anchor is not None
