"""A plan is carried over to another capture of its program: regions in regions too."""

from itertools import product

import pytest

from peakfold.cost.roofline import estimate
from peakfold.errors import PlanError
from peakfold.ir.plan import Plan
from peakfold.pipeline.task import Task
from peakfold.pipeline.transfer import transfer
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.nested import regions_of
from peakfold.plan.fission.prepare import prepare
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
