"""The tables against torch's own operators, and against the operators of the workloads."""

import pytest
import torch

from peakfold.bridge.capture.step import capture_step
from peakfold.ir.recompute import why_not_again
from peakfold.ops.known import KNOWN, barriers, known
from peakfold.workloads.build import NAMES, build


def test_every_known_operator_is_one_of_torch():
    assert [name for name in KNOWN if not hasattr(torch.ops.aten, name.removeprefix("aten."))] == []


CASES = [*((name, "adamw") for name in (*NAMES, "bert_sdpa")), ("vit", "momentum")]


@pytest.mark.parametrize(("name", "optimizer"), CASES)
def test_no_workload_has_an_operator_without_an_entry(name, optimizer):
    dropout = 0.0 if name == "resnet50" else 0.1
    target = build(name, "tiny", optimizer, dropout)
    captured = capture_step(target.model, target.loss_fn, target.optimizer, target.batch)
    assert barriers(captured.graph) == ()


def test_a_custom_operator_is_a_barrier():
    assert not known("mylib.fused.default")


LIBRARY = torch.library.Library("peakfoldtest", "DEF")
LIBRARY.define("fused(Tensor x) -> Tensor")
LIBRARY.impl("fused", lambda x: x.exp() + 1, "CPU")
LIBRARY.impl("fused", torch.empty_like, "Meta")


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.ops.peakfoldtest.fused(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (y - 1)


def test_a_custom_operator_runs_once_in_every_plan():
    layers = [torch.nn.Linear(32, 32) for _ in range(4)]
    model = torch.nn.ModuleList(layers)

    def loss_fn(model, x):
        for layer in model:
            x = Fused.apply(layer(x).tanh() * 0.01)
        return x.mean()

    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    graph = capture_step(model, loss_fn, sgd, (torch.zeros(64, 32),)).graph
    custom = [node for node in graph.nodes if node.op.name == "peakfoldtest.fused.default"]
    assert barriers(graph) == ("peakfoldtest.fused.default",)
    assert len(custom) == 4
    assert {why_not_again(graph).get(node.id) for node in custom} == {
        "peakfoldtest.fused.default does more than compute its result"
    }
