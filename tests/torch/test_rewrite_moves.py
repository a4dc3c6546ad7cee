"""Rewrites as moves of a search: what they lower, and that hashes, maps of ids and plans follow them."""

import pytest
import torch
from torch import nn

from peakfold.bridge.runtime.retype import retyped
from peakfold.cost import roofline
from peakfold.graph.rewrite.memory import narrow_indices
from peakfold.graph.rewrite.simplify import simplify
from peakfold.graph.wl import hashed
from peakfold.ir.graph import Value
from peakfold.ir.plan import Plan, Recompute
from peakfold.pipeline.task import Task
from peakfold.plan.check import check_graph, require_legal
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.lower import lower
from peakfold.plan.search.rewrites import FAMILIES, State, by_planner, moved, remapped, rewritten


@pytest.fixture(scope="module")
def graph():
    """A step of two convolutions with a pooling of large windows between them, whose indices stay."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.LazyLinear(2)
    )
    x = torch.rand(2, 1, 16, 16)
    model(x)
    task = Task(model, lambda m, x: m(x).square().mean(), torch.optim.SGD(model.parameters(), 0.1), (x,))
    return simplify(task.capture().graph).graph


def costs_of(graph):
    return roofline.estimate(graph, "rtx3090")


def test_a_family_moves_everywhere_and_hash_and_map_follow(graph):
    after = moved(State(hashed(graph)), "narrow_indices", narrow_indices, retyped, keep_bits=True)
    assert after.families == (("narrow_indices", 1),)
    assert after.hashed.value == hashed(after.graph).value != hashed(graph).value
    assert not check_graph(after.graph)
    assert set(after.ids.new) == after.graph.node.keys() - graph.node.keys()
    assert after.ids == after.since
    none = moved(State(hashed(graph)), "fused_losses", FAMILIES["fused_losses"], retyped, keep_bits=True)
    assert none is None


def test_states_are_planned_the_best_first_and_the_given_graph_wins_ties(graph):
    total = sum(costs_of(graph).seconds.values())
    goal = Goal(None, 1.5 * total)
    search = by_planner(goal, iterations=5, seconds=5.0)
    states = rewritten(graph, costs_of, retyped, search, goal, most=3)
    assert {state.families for state in states} >= {(), (("narrow_indices", 1),)}
    assert len({state.hashed.value for state in states}) == len(states)
    peaks = [state.point.peak_bytes for state in states]
    assert peaks == sorted(peaks)
    for state in states:
        require_legal(state.graph, lower(state.graph, state.point.plan))
    alone = rewritten(graph, costs_of, retyped, search, goal, families={})
    assert [state.families for state in alone] == [()]
    assert peaks[0] <= alone[0].point.peak_bytes


def test_a_plan_follows_the_map_of_ids(graph):
    after = moved(State(hashed(graph)), "narrow_indices", narrow_indices, retyped, keep_bits=True)
    pairs = [(v.node, r) for v, readers in graph.users.items() for r in readers if v.node in graph.node][:6]
    plan = Plan(graph.digest, tuple(Recompute(node, use) for node, use in sorted(set(pairs))))
    there = remapped(plan, after.since, after.graph)
    assert there.graph == after.graph.digest
    kept = {(item.node, item.use) for item in there.recompute}
    assert kept <= {(node, use) for node in after.graph.node for use in after.graph.node}
    gone = {ident for ident in graph.node if after.since.of(Value(ident)) is None}
    assert len(kept) == len({p for p in pairs if not gone & set(p)})
