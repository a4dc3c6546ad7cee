"""Numbers that rounding alone decides: left out, and nothing else is."""

from dataclasses import replace

import pytest
import torch
from tests.torch.test_regions import batch_plan, split_program
from torch import nn

from peakfold.bridge.runtime.compare import BOUND
from peakfold.bridge.runtime.rounding import ROUNDS, Rounded
from peakfold.pipeline import exact, prove
from peakfold.pipeline.task import Task
from peakfold.report import words

LOUD = 1e4
"""Of the loss: a gradient that is zero in exact arithmetic consists of so much roundoff."""


class Scores(nn.Module):
    """Attention; a bias of its keys has no effect, since softmax takes differences."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return (self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1) @ self.v(x)


def loud(model, x):
    return LOUD * model(x).square().sum()


def task_of(rewriter=None):
    torch.manual_seed(0)
    model = Scores()
    adamw = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Task(model, loud, adamw, (torch.randn(6, 5, 8),), rewriter=rewriter)


def equality(task):
    program = split_program(task, lambda graph: batch_plan(graph, 2))
    return prove.equal(task, program, prove.watch(task, None), prove.watch(task, program))


def wrong(of, to):
    """Return what replaces one number of the program by another."""

    def rewriter(graph):
        def made(node):
            args = tuple(to if arg == of and type(arg) is float else arg for arg in node.args)
            return replace(node, args=args)

        return replace(graph, nodes=tuple(map(made, graph.nodes)))

    return rewriter


def test_a_right_program_is_equal_where_rounding_alone_decides_an_update():
    task = task_of()
    program = split_program(task, lambda graph: batch_plan(graph, 2))
    double = exact.Precise(task, prove.STEPS).of(program)
    judged = prove._exactly(double, "full")
    assert not judged.ok
    assert judged.worst.startswith("k.bias")
    found = equality(task)
    assert found.ok
    assert found.max_error <= BOUND
    assert 0 < found.undecided <= task.model.k.bias.numel() * 3
    assert f"{found.undecided} numbers left out" in words.equality(found).text


@pytest.mark.parametrize("fault", [(LOUD, LOUD * (1 + 1e-7)), (2.0, 2.0 + 1e-6), (0.5, 0.5 - 1e-6)])
def test_a_small_fault_beside_them_is_found(fault):
    assert not equality(task_of(wrong(*fault))).ok


def test_a_program_that_rounds_as_eager_does_is_compared_number_by_number():
    task = task_of()
    program = split_program(task, lambda graph: replace(batch_plan(graph, 2), regions=()))
    found = prove.equal(task, program, prove.watch(task, None), prove.watch(task, program))
    assert (found.ok, found.bit_equal, found.undecided) == (True, True, 0)


def test_every_operator_of_the_table_exists():
    assert all(hasattr(torch.ops.aten, name) for name in ROUNDS)


def test_what_chooses_numbers_is_not_moved():
    x = torch.rand(5, dtype=torch.float64, requires_grad=True)
    with Rounded(0):
        (x * 3).max().backward()
    assert int((x.grad != 0).sum()) == 1


def test_a_model_of_float64_is_compared_in_it_alone():
    task = task_of()
    task.model.double()
    task = replace(task, batch=(task.batch[0].double(),))
    assert equality(task).ok
    assert not equality(replace(task, rewriter=wrong(LOUD, LOUD * (1 + 1e-6)))).ok
