"""Quicker forms of operators: the same bits, whatever they are given."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.torch.capture_support import assert_types_hold, same
from torch import nn

import peakfold
from peakfold.bridge.capture import capture_inference, capture_step
from peakfold.bridge.runtime.interpret import interpret
from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError
from peakfold.graph.rewrite.passes.quicker import KINDS, QuickerForms
from peakfold.ir.plan import Plan
from peakfold.pipeline import optimize, prove
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.quicker import Quickened, every, quickest
from peakfold.pipeline.task import Task

ODD = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 1.0, -1.0])


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def drawn(shape, seed, dtype=torch.float32):
    """Numbers among which many are alike, infinite, negative zeros, or none."""
    generator = torch.Generator().manual_seed(seed)
    return ODD[torch.randint(0, len(ODD), shape, generator=generator)].to(dtype)


def rewritten(function, *tensors):
    """The results of a function, of its graph, and of that in other forms; and how many were made."""
    captured = capture_inference(Call(function), tensors)
    found = QuickerForms()(captured.graph).graph
    given = {one.id: tensor for one, tensor in zip(captured.graph.inputs, tensors, strict=True)}
    values = interpret(found, given, {})
    assert_types_hold(found, values)
    expected = function(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    return expected, tuple(values[out.value] for out in found.outputs), found.digest != captured.graph.digest


POOLS = {
    "halves": {"kernel_size": 2},
    "windows that overlap": {"kernel_size": 3, "stride": 2, "padding": 1},
    "oblong": {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0)},
    "apart": {"kernel_size": 2, "dilation": 2},
    "beyond the end": {"kernel_size": 2, "stride": 2, "ceil_mode": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", POOLS)
def test_a_maximum_over_windows(name, dtype):
    for seed, shape in enumerate([(2, 3, 9, 7), (1, 17, 6, 6), (3, 64, 5, 8)]):
        x = drawn(shape, seed, dtype)
        pool = partial(F.max_pool2d, return_indices=True, **POOLS[name])
        expected, found, other = rewritten(pool, x)
        assert other
        assert all(map(same, expected, found))


@pytest.mark.parametrize(
    "x", [drawn((2, 1, 6, 6), 0), drawn((3, 5, 6), 0), drawn((2, 3, 6, 6), 0, torch.bfloat16)]
)
def test_where_channels_last_would_be_nothing_else_or_give_other_bits_the_pool_stays(x):
    expected, found, other = rewritten(lambda x: F.max_pool2d(x, 2), x)
    assert not other
    assert all(map(same, expected, found))


@pytest.mark.parametrize("number", [0, -3.4028234663852886e38, -float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_filled_mask(number, dtype):
    for mask in ((4, 5, 5), (5, 5), (5,), (1, 1, 1)):
        x = drawn((4, 5, 5), 1, dtype)
        chosen = torch.rand(mask, generator=torch.Generator().manual_seed(2)) > 0.4
        expected, found, other = rewritten(lambda x, m, n=number: x.masked_fill(m, n), x, chosen)
        assert other
        assert all(map(same, expected, found))


@pytest.mark.parametrize(
    ("x", "mask"),
    [
        (drawn((4, 5), 0).t(), torch.ones(5, 4, dtype=torch.bool)),
        (drawn((5,), 0), torch.ones(4, 5, dtype=torch.bool)),
        (torch.arange(5), torch.ones(5, dtype=torch.bool)),
        (drawn((5,), 0, torch.bfloat16), torch.ones(5, dtype=torch.bool)),
    ],
)
def test_a_fill_that_would_lie_or_round_otherwise_stays(x, mask):
    expected, found, other = rewritten(lambda x, m: x.masked_fill(m, 2), x, mask)
    assert not other
    assert all(map(same, expected, found))


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 16, 8)

    def forward(self, x):
        h = F.max_pool2d(self.conv(x), 2)
        scores = self.out(h.flatten(1))
        return scores.masked_fill(scores > 0.3, 0).square().mean()


def setting():
    torch.manual_seed(0)
    model = Both()
    return model, lambda m, x: m(x), torch.optim.AdamW(model.parameters()), (torch.randn(6, 1, 8, 8),)


def test_a_training_step_in_quicker_forms_is_equal():
    task = Task(*setting(), rewriter=Quickened(frozenset(KINDS)))
    captured = task.capture()
    names = {node.op.name for node in captured.graph.nodes}
    assert "aten.where.self" in names
    assert "aten.masked_fill.Scalar" not in names
    program = emit_plan(captured, Plan(captured.graph.digest), Costs({}, {}, ""))
    found = prove.equal(task, program, prove.watch(task, None), prove.watch(task, program))
    assert found.ok
    assert found.bit_equal
    assert found.max_error <= found.bound


def test_a_budget_that_the_quicker_forms_miss_is_met_without_them(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))
    seen = []

    def within(run, facts, plain):
        seen.append(run.task.rewriter)
        if len(seen) == 1:
            raise InfeasibleError(stage="plan", what="no program within the budget was found")
        return plainly(run, facts, plain)

    plainly = optimize.within
    monkeypatch.setattr(optimize, "within", within)
    monkeypatch.setattr(optimize.Run, "is_quickened", property(lambda run: len(seen) == 1))
    step = peakfold.optimize_step(*setting(), iterations=10)
    assert len(seen) == 2
    assert not (seen[1] and seen[1].kinds)
    assert any(note.startswith("quicker forms of operators were not used") for note in step.report.notes)


def test_forms_are_chosen_by_what_they_cost():
    model, loss_fn, optimizer, batch = setting()
    graph = capture_step(model, loss_fn, optimizer, batch).graph

    def costs_of(slow):
        return lambda graph: Costs({n.id: 1.0 if n.op.name in slow else 1e-3 for n in graph.nodes}, {}, "")

    assert quickest(graph, costs_of(())).kinds == frozenset()
    assert quickest(graph, costs_of(("aten.masked_fill.Scalar",))).kinds == {"fills"}
    assert len({one(graph).digest for one in every(graph)}) == 4
    assert Quickened()(graph).digest in {one(graph).digest for one in every(graph)}
