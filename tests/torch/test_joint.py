"""The joint search on real programs: split plans are found, kept to their budget, equal and repeatable."""

import pytest
import torch

import peakfold
from peakfold.cost.roofline import estimate
from peakfold.errors import InfeasibleError
from peakfold.pipeline.api import optimize_target
from peakfold.pipeline.request import request
from peakfold.pipeline.task import Task
from peakfold.plan.fission.solve import Solver
from peakfold.plan.search.joint import Joint, optimize, optimize_front
from peakfold.workloads.load import load_target


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No plan is there that an earlier run kept."""
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))


def mlp():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.GELU(), torch.nn.Linear(256, 16))
    batch = (torch.randn(512, 16), torch.randn(512, 16))
    return model, lambda m, x, y: (m(x) - y).square().mean(), torch.optim.AdamW(model.parameters()), batch


def test_a_budget_that_no_unsplit_plan_keeps_is_kept_by_parts():
    with pytest.raises(InfeasibleError):
        peakfold.optimize_step(*mlp(), memory="30%", iterations=300)
    step = peakfold.optimize_step(*mlp(), memory="30%", iterations=300, fission=True)
    assert step.report.equal.ok
    assert step.plan.regions
    assert step.report.optimized.peak_bytes <= 0.3 * step.report.eager.peak_bytes


def test_the_same_seed_and_iterations_give_the_same_plan():
    made = [peakfold.optimize_step(*mlp(), memory="30%", iterations=200, fission=True) for _ in range(2)]
    assert made[0].source == made[1].source


def test_a_simulated_device_needs_no_run():
    asked = request("60%", None, 60, 100, 0, "eager", True, "sim:rtx3090", offload="none", fission=True)
    report = optimize_target(load_target("bert", size="tiny"), asked).report
    assert report.optimized.predicted_peak_bytes <= 0.6 * report.eager.peak_bytes


def test_no_state_is_planned_twice(monkeypatch):
    visited = []
    plan = Joint._visit

    def visit(self, state):
        visited.append(state.parts)
        return plan(self, state)

    monkeypatch.setattr(Joint, "_visit", visit)
    searched()
    assert len(visited) > 1
    assert len(set(visited)) == len(visited)


def test_the_same_search_finds_the_same_front():
    assert searched().front == searched().front


def test_a_whole_front_says_what_its_plans_come_to():
    graph = Task(*mlp()).capture().graph
    plain = sum(costs_of(graph).seconds.values())
    times = [ratio * plain for ratio in (1.0, 1.1, 1.5)]
    found = [
        optimize_front(graph, costs_of(graph), costs_of, times=times, iterations=60)[0].front
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert any(point.plan.regions for point in found[0])
    for point in found[0]:
        line = Solver(graph, costs_of).nest(point.plan).timeline
        assert line.peak == point.peak_bytes
        assert line.seconds == pytest.approx(point.seconds, rel=1e-9)


def costs_of(graph):
    return estimate(graph, "rtx3090")


def searched():
    """What the search itself finds for a small step, with no plan kept from before."""
    graph = Task(*mlp()).capture().graph
    return optimize(graph, costs_of(graph), costs_of, latency=1.0, iterations=60)
