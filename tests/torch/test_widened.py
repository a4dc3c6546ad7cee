"""Models whose own code casts down: both programs are compared in float64 throughout."""

from dataclasses import replace

import pytest
import torch
from tests.torch.test_regions import FREE, batch_plan, split_program
from torch import nn

from peakfold.bridge.capture import capture_inference
from peakfold.bridge.capture.widened import Widened
from peakfold.bridge.runtime.compare import BOUND
from peakfold.ir.plan import Plan
from peakfold.pipeline import exact, prove
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.task import Task
from peakfold.report import words

SCALE = 0.125


class Scores(nn.Module):
    """Attention that is taken in a type of its own."""

    def __init__(self, kind=torch.float32):
        super().__init__()
        self.project, self.out, self.kind = nn.Linear(8, 24), nn.Linear(8, 8), kind

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        scores = q.to(self.kind) @ k.to(self.kind).transpose(1, 2) * SCALE
        return self.out(scores.softmax(-1).to(v.dtype) @ v)


class Insists(nn.Module):
    """What it computes in float32 does not run with other weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(self.first(x).float().softmax(-1, dtype=torch.float32))


def task_of(model, rewriter=None):
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    batch = (torch.randn(6, 5, 8),)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return Task(model, lambda m, x: m(x).square().sum(), sgd, batch, rewriter=rewriter)


def equality(task, parts=2):
    def plan_of(graph):
        return batch_plan(graph, parts) if parts > 1 else Plan(graph.digest)

    program = split_program(task, plan_of)
    eager, found = prove.watch(task, None), prove.watch(task, program)
    return prove.equal(task, program, eager, found)


def scaled(factor):
    """Return what scales attention by something else, in the part that is in float32."""

    def rewriter(graph):
        def made(node):
            args = tuple(arg * factor if arg == SCALE and type(arg) is float else arg for arg in node.args)
            return replace(node, args=args)

        return replace(graph, nodes=tuple(map(made, graph.nodes)))

    return rewriter


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_plan_that_sums_in_another_order_is_equal_whatever_the_model_casts_to(kind):
    task = task_of(Scores(kind))
    program = split_program(task, lambda graph: batch_plan(graph, 2))
    wide, plain = exact.Precise(task, prove.STEPS).ways(program)
    assert wide.task.widened
    assert not plain.task.widened
    assert exact.casts_down(plain.program.captured.graph)
    assert not exact.casts_down(wide.program.captured.graph)
    found = prove._exactly(exact.Precise(task, prove.STEPS).of(program), "full")
    assert found.ok
    assert found.max_error < 1e-13


def test_the_models_own_casts_round_what_is_compared_without_that():
    task = task_of(Scores())
    program = split_program(task, lambda graph: batch_plan(graph, 2))
    _, plain = exact.Precise(task, prove.STEPS).ways(program)
    original = prove.watch(plain.task, None, "float64")
    wide = exact.Precise(task, prove.STEPS).of(program).original
    assert prove.judge(original, wide, precision="float64").max_error > BOUND


@pytest.mark.parametrize("parts", [1, 2])
def test_a_fault_below_the_rounding_of_float32_is_found_in_the_part_that_is_cast(parts):
    assert equality(task_of(Scores(), scaled(1.0)), parts).ok
    found = equality(task_of(Scores(), scaled(1 + 2e-8)), parts)
    assert not found.ok
    assert found.max_error > BOUND
    assert found.widened


def test_a_model_that_does_not_run_in_float64_is_proved_in_it():
    found = equality(task_of(Insists()), 1)
    assert found.ok
    assert found.bound == BOUND
    assert found.widened
    task = task_of(Insists())
    program = emit_plan(captured := task.capture(), Plan(captured.graph.digest), FREE)
    _, plain = exact.Precise(task, prove.STEPS).ways(program)
    assert exact._eager(plain.task, prove.STEPS) is None


def test_models_without_such_casts_are_compared_as_they_are():
    found = equality(task_of(nn.Linear(8, 8)), 1)
    assert found.ok
    assert not found.widened


def test_the_report_says_so():
    verdict = words.equality(equality(task_of(Scores()), 1))
    assert verdict.text.startswith("every bit over 3 steps; float64 error 0")
    assert "the model's own casts widened in both" in verdict.text


class Rounds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return (gradient.float() / 3).to(gradient.dtype)


def test_what_is_cast_is_float64_and_what_is_new_is_as_the_code_says():
    third = torch.full((2,), 1 / 3, dtype=torch.float64, requires_grad=True)
    with Widened():
        assert third.half().dtype == third.type(torch.bfloat16).dtype == torch.float64
        assert third.sum(dtype=torch.float32).item() == 2 / 3
        assert (
            torch.arange(3).float().dtype == torch.zeros_like(third, dtype=torch.half).dtype == torch.float64
        )
        assert torch.zeros(2, dtype=torch.float32).dtype == torch.float32
        assert third.detach().view(torch.float32).shape == (4,)
        assert third.to(torch.int32).dtype == torch.int32
        Rounds.apply(third).sum().backward()
    assert torch.equal(third.grad, torch.full((2,), 1 / 3, dtype=torch.float64))


def test_branches_are_widened_too():
    class Net(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda v: v.float().sin(), lambda v: v.float().cos(), (x,))

    x = torch.zeros(3, dtype=torch.float64)
    assert exact.casts_down(capture_inference(Net(), x).graph)
    assert not exact.casts_down(capture_inference(Net(), x, widened=True).graph)
    task = Task(Net(), None, None, (torch.rand(3),))
    found = equality(task, 1)
    assert found.ok
    assert found.widened
