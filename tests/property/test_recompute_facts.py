"""What the text of a plan refuses is what lowering refuses."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import plans, runnable_graphs

from peakfold.cost.costs import Costs
from peakfold.ir.recompute import late_nodes, why_not_again
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.frame import frame
from peakfold.plan.schedule.lower import lower


@settings(max_examples=150, deadline=None)
@given(runnable_graphs())
def test_lowering_and_the_graphs_facts_agree(graph):
    placed = frame(tabulate(graph, Costs({}, {})))
    refused = set(why_not_again(graph))
    steps = placed.tables.nodes
    assert [int(node) not in refused for node in steps] == placed.droppable.tolist()
    assert {int(node) for node in steps[np.flatnonzero(placed.late)]} == late_nodes(graph)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_drawn_plan_lowers(data):
    graph = data.draw(runnable_graphs())
    assert lower(graph, data.draw(plans(graph))).steps
