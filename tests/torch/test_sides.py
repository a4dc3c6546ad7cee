"""The proof covers the sides of branches that the batch does not lead to."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._higher_order_ops import while_loop

import peakfold
from peakfold.cost.costs import Costs
from peakfold.ir.control import COND, exchanged
from peakfold.ir.graph import Op
from peakfold.ir.plan import Plan
from peakfold.pipeline import prove
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.sides import ways
from peakfold.pipeline.task import Task


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        def then(v):
            return torch.cond(v.mean() > 9, lambda w: self.one(w).tanh(), lambda w: w.cos(), (v,))

        return torch.cond(x.sum() > 0, then, lambda v: self.two(v).sin(), (x,)) * 2


def wrong(graph, old, new):
    """Return a graph in which one operator, wherever it stands, is another one."""

    def made(node):
        bodies = tuple(wrong(body, old, new) for body in node.bodies)
        return replace(node, op=Op(new) if node.op.name == old else node.op, bodies=bodies)

    return replace(graph, nodes=tuple(map(made, graph.nodes)))


def equality(task):
    captured = task.capture()
    program = emit_plan(captured, Plan(captured.graph.digest), Costs({}, {}))
    eager, found = prove.watch(task, None), prove.watch(task, program)
    return prove.equal(task, program, eager, found)


def task_of(training, rewriter):
    torch.manual_seed(0)
    model, batch = Net(), (torch.rand(4, 6),)
    if not training:
        return Task(model, None, None, batch, rewriter=rewriter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Task(model, lambda m, x: m(x).square().mean(), optimizer, batch, rewriter=rewriter)


def test_all_sides_are_compared_where_they_are_right():
    right = equality(task_of(True, lambda graph: graph))
    assert right.ok
    assert right.bit_equal


@pytest.mark.parametrize(
    ("training", "old", "new"),
    [(False, "sin", "cos"), (False, "tanh", "sin"), (True, "tanh_backward", "sigmoid_backward")],
)
def test_a_wrong_side_that_does_not_run_is_found(training, old, new):
    names = f"aten.{old}.default", f"aten.{new}.default"
    found = equality(task_of(training, lambda graph: wrong(graph, *names)))
    assert found.bit_equal
    assert not found.ok
    assert found.max_error > found.bound


def test_exchanging_twice_is_the_graph_itself():
    graph = task_of(False, None).capture().graph
    for depths in ways(graph):
        assert exchanged(exchanged(graph, depths), depths) == graph != exchanged(graph, depths)
    assert len({exchanged(graph, depths).digest for depths in ways(graph)}) == 3
    assert [node.op.name for node in graph.nodes if node.bodies] == [COND]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (
            lambda x: while_loop(lambda v: v.sum() > 9, lambda v: (v / 2,), (x,))[0],
            "a loop may not end where branches are decided the other way",
        ),
        (
            lambda x: torch.cond(x.sum() > 0, lambda v: torch.dropout(v, 0.5, True), lambda v: v * 1, (x,)),
            "a branch draws random numbers",
        ),
        (
            lambda x: (
                torch.cond(torch.ones(()) > 0, lambda v: v * 2, lambda v: v * 1, (x,))
                + torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v * 1, (x,))
            ),
            "some branches were decided when the program was captured or rewritten",
        ),
    ],
)
def test_where_only_one_side_is_proved_the_report_says_so(function, why):
    class Function(nn.Module):
        def forward(self, x):
            return function(x)

    step = peakfold.optimize_inference(Function(), (torch.rand(4),), iterations=1)
    assert step.report.equal.ok
    note = f"only the sides of branches that this batch leads to were compared: {why}"
    assert note in step.report.notes
