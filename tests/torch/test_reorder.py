"""The order of least peak of a real program, in the simulator and in the planner."""

import torch

from peakfold.bridge.capture import capture_inference
from peakfold.cost.roofline import estimate
from peakfold.ir.plan import Plan
from peakfold.plan.check import check_plan
from peakfold.plan.reorder.orders import least_peak
from peakfold.plan.reorder.problem import problem_of
from peakfold.plan.schedule import planner
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.frame import frame
from peakfold.plan.schedule.lower import lower_tables
from peakfold.plan.schedule.simulate import simulate_tables


class Branches(torch.nn.Module):
    """Two wide beginnings, each followed by what makes it narrow; the program has both wide at once."""

    def forward(self, x):
        one, other = x.repeat(1, 64).sin(), x.repeat(1, 48).cos()
        return torch.nn.functional.dropout(one, 0.5).sum(1) + torch.nn.functional.dropout(other, 0.5).sum(1)


def captured():
    graph = capture_inference(Branches(), (torch.randn(16, 4),)).graph
    return graph, estimate(graph, "rtx3090")


def test_the_model_of_an_order_comes_to_what_the_simulator_says():
    graph, costs = captured()
    tables = tabulate(graph, costs)
    placed = frame(tables)
    problem, _ = problem_of(placed)
    order = least_peak(placed)
    known = simulate_tables(tables, lower_tables(tables, Plan(graph.digest)), costs.link)
    found = simulate_tables(tables, lower_tables(tables, Plan(graph.digest, order=order)), costs.link)
    assert not check_plan(graph, Plan(graph.digest, order=order))
    assert problem.peak(range(problem.size)) == known.peak - tables.resident
    assert found.peak < known.peak


def test_the_planner_keeps_a_budget_by_order_alone():
    graph, costs = captured()
    tables = tabulate(graph, costs)
    order = least_peak(frame(tables))
    plan = Plan(graph.digest, order=order)
    least = simulate_tables(tables, lower_tables(tables, plan), costs.link)
    found = planner.optimize(graph, costs, memory=least.peak, iterations=10)
    assert found.peak_bytes <= least.peak
    assert found.seconds == least.seconds
