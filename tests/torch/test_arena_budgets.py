"""Budgets of arenas that are too small: another plan is looked for, and what a refusal advises works."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import peakfold
from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError
from peakfold.ir.plan import Plan
from peakfold.pipeline import attempts, prove
from peakfold.pipeline.arena import laid_out
from peakfold.pipeline.held import held
from peakfold.pipeline.optimize import optimize
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.prove import watch
from peakfold.pipeline.request import request
from peakfold.pipeline.task import Task


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm, self.wide = nn.BatchNorm2d(16), nn.Linear(256, 64)
        self.scale, self.out = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.second(x)) + x
        x = nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)
        return self.out(torch.relu(self.scale(self.wide(x))))


def arena_of(memory):
    torch.manual_seed(0)
    model = Blocks()
    batch = (torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)))
    step = peakfold.optimize_step(
        model,
        lambda m, x, y: nn.functional.cross_entropy(m(x), y),
        torch.optim.Adam(model.parameters()),
        batch,
        memory=f"arena:{memory}",
        iterations=300,
        verify=False,
    )
    return step.report.arena.nbytes


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))


def test_a_budget_one_byte_below_an_arena_is_kept_where_smaller_ones_are():
    largest = arena_of(1 << 30)
    smaller = arena_of(largest * 9 // 10)
    for budget in (largest - 1, largest - 64, smaller, (smaller + largest) // 2):
        assert arena_of(budget) <= budget


class Joined(nn.Module):
    """What it returns is most of what it takes: results have places of their own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(50, 50) for _ in range(3))

    def forward(self, x):
        found = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            found.append(x)
        return torch.cat(found, 1)


def attention():
    return nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)


MODELS = {
    "blocks": (Blocks, (4, 3, 32, 32)),
    "joined": (Joined, (33, 50)),
    "attention": (attention, (2, 17, 32)),
}


def optimized(name, training, memory, holds):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model, x = make(), torch.randn(shape)
    asked = {"memory": f"arena:{memory}", "iterations": 30, "verify": False, "arena_holds": holds}
    if not training:
        return peakfold.optimize_inference(model.eval(), (x,), **asked)
    optimizer = torch.optim.Adam(model.parameters())
    return peakfold.optimize_step(model, lambda m, x: m(x).square().mean(), optimizer, (x,), **asked)


@pytest.mark.parametrize(
    ("name", "training", "holds"),
    [
        ("blocks", True, "step"),
        ("blocks", False, "all"),
        ("joined", True, "all"),
        ("joined", False, "step"),
        ("attention", True, "step"),
        ("attention", False, "all"),
    ],
)
def test_the_arena_that_a_refusal_names_is_one_that_works(name, training, holds):
    with pytest.raises(InfeasibleError) as caught:
        optimized(name, training, 64, holds)
    error = caught.value
    advised = int(re.search(r"allow an arena of at least (\d+) bytes", error.hint)[1])
    assert advised == error.lowest_peak_bytes >= error.lower_bound_bytes
    found = optimized(name, training, advised, holds)
    assert found.report.arena.nbytes <= advised
    if holds == "step":
        outside = [f"{given.name} " for given in found.compiled.graph.inputs]
        assert not [name for name in outside if name in error.where]


def left_alone(kind, stands):
    """Return a task whose parameters have gradients before the step, or none."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)), torch.randn(16, 32)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if stands else None
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}.get(kind)
    optimizer = None if make is None else make(model.parameters(), lr=0.1)
    return Task(model, None if kind == "inference" else square, optimizer, (x,))


def square(model, x):
    return model(x).square().mean()


@pytest.mark.parametrize("stands", [False, True])
@pytest.mark.parametrize("holds", ["step", "all"])
@pytest.mark.parametrize("kind", ["none", "sgd", "adam", "inference"])
def test_what_is_measured_beside_an_arena_is_what_stands_there(kind, holds, stands):
    task = left_alone(kind, stands)
    captured = task.capture()
    program = emit_plan(captured, Plan(captured.graph.digest), Costs({}, {}))
    inside = laid_out(task, program, 1 << 30, held(task, captured) if holds == "all" else (), run=True)
    seen = watch(task, inside)
    assert (seen.measured.peak_bytes, seen.use.ordinary, seen.use.spares) == (inside.peak, 0, 0)


def optimized_and_proved(holds, memory):
    task = left_alone("none", False)
    return optimize(task, request(memory, None, 60, 20, 0, "eager", True, arena_holds=holds)).report


@pytest.mark.parametrize("holds", ["step", "all"])
def test_the_arena_that_a_refusal_names_holds_a_step_that_leaves_gradients(holds):
    with pytest.raises(InfeasibleError) as caught:
        optimized_and_proved(holds, "arena:64")
    advised = int(re.search(r"allow an arena of at least (\d+) bytes", caught.value.hint)[1])
    report = optimized_and_proved(holds, f"arena:{advised}")
    assert report.arena.nbytes <= advised == report.arena.budget_bytes
    assert report.equal.bit_equal
    assert report.optimized.peak_bytes == report.optimized.predicted_peak_bytes
    assert report.optimized.peak_bytes <= report.limits.memory_bytes


def test_bytes_that_nobody_planned_are_named_beside_the_arena(monkeypatch):
    least = optimized_and_proved("step", "arena:4MiB").arena.nbytes
    watch_ = prove.watch

    def more(task, program, *args):
        seen = watch_(task, program, *args)
        if program is None or seen.measured is None:
            return seen
        return replace(seen, measured=replace(seen.measured, peak_bytes=seen.measured.peak_bytes + 512))

    monkeypatch.setattr(prove, "watch", more)
    monkeypatch.setattr(attempts, "ATTEMPTS", 1)
    with pytest.raises(InfeasibleError) as caught:
        optimized_and_proved("step", f"arena:{least}")
    error = caught.value
    assert error.got.startswith(f"{least} bytes; {least} of it live at once; 512 bytes measured beside it")
    assert error.hint.startswith(f"allow an arena of at least {least + 512} bytes")
    assert error.lowest_peak_bytes == least + 512
    assert "mm" in error.where
    assert optimized_and_proved("step", f"arena:{least + 512}").arena.nbytes == least


def test_a_step_that_leaves_gradients_is_measured_without_those_of_the_step_before():
    report = optimized_and_proved("step", None)
    assert report.equal.bit_equal
    assert report.optimized.peak_bytes == report.optimized.predicted_peak_bytes


def test_an_arena_beside_a_time_that_no_program_keeps_is_refused_for_the_time():
    torch.manual_seed(0)
    model = Joined()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(InfeasibleError, match=r"every program needs \S+ s\n") as caught:
        peakfold.optimize_step(
            model,
            lambda m, x: m(x).square().mean(),
            optimizer,
            (torch.randn(33, 50),),
            memory="arena:50000",
            latency=0.01,
            iterations=30,
        )
    assert caught.value.hint == "allow more time"


def test_a_given_plan_whose_arena_is_over_the_budget_is_refused():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    task = Task(model, lambda m, x: m(x).square().mean(), optimizer, (torch.randn(16, 8),))
    text = optimize(task, request(None, None, 1.0, 20, 0, "eager", False)).report.texts.plan
    with pytest.raises(InfeasibleError) as caught:
        optimize(task, request("arena:1000", None, 1.0, 20, 0, "eager", False, plan=text))
    nbytes = caught.value.lowest_peak_bytes
    assert caught.value.hint == f"allow an arena of at least {nbytes} bytes, or change the plan"
    found = optimize(task, request(f"arena:{nbytes}", None, 1.0, 20, 0, "eager", False, plan=text))
    assert found.report.arena.nbytes == nbytes
