"""The text of a small training step and of a plan for it."""

from tests.torch.programs import dropout_step

from peakfold.ir.plan import Plan, Recompute
from peakfold.ir.text import parse_graph, parse_plan, print_graph, print_plan


def test_graph(golden):
    graph = dropout_step()
    golden("text/dropout_step.graph.txt", print_graph(graph))
    assert parse_graph(print_graph(graph)) == graph


def test_plan(golden):
    graph = dropout_step()
    own = [node.id for node in graph.nodes if not node.is_view]
    recompute = (Recompute(12, 17), Recompute(13, 16, hold=False))
    order = (own[0], own[1], own[2], own[4], own[3], *own[5:])
    plan = Plan(graph.digest, recompute, "last", False, order)
    text = print_plan(plan, graph, {recompute[0]: "saves 32 B, costs 2 us"})
    golden("text/dropout_step.plan.txt", text)
    assert parse_plan(text, graph) == plan
