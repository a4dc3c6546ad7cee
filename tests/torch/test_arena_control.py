"""Programs with control flow in one arena: whichever way they go, every byte and every bit."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.torch.test_arena import program_of
from tests.torch.test_control import Function, Passes, Sides
from tests.torch.test_dataflow import LENGTH, LOOPS, NESTED, Program, blocks
from torch import nn
from torch._higher_order_ops import while_loop

import peakfold
from peakfold.bridge.runtime.measure import peak_bytes
from peakfold.errors import UsageError
from peakfold.pipeline.arena import allocations, best_layout
from peakfold.pipeline.prove import make_step
from peakfold.pipeline.task import Task
from peakfold.plan.memory.check import check_placement
from peakfold.plan.memory.layout import placed


def both(task):
    """The same program with torch's allocator and in its arena, on copies."""
    program = program_of(task)
    layout = best_layout(allocations(task, program))
    problem = placed(layout)
    assert problem is None or check_placement(problem) <= layout.passing
    mine, other = task.clone(), task.clone()
    return make_step(mine, program), make_step(other, program.running_in(layout)), mine, other


def served(step, *batch):
    results = step(*batch)
    assert step.arena.use.ordinary == 0, step.arena.use.named
    assert step.arena.use.served == step.arena.use.requests
    assert step.arena.use.high_water <= step.arena.layout.arena
    return results


def inference(module, *batch):
    return Task(module, None, None, batch)


def test_both_sides_of_a_branch_are_served():
    torch.manual_seed(0)
    plain, inside, _, _ = both(inference(Sides(), torch.rand(16, 8)))
    for sign in (1, -1, -1, 1):
        x = torch.rand(16, 8) * sign
        assert torch.equal(served(inside, x), plain(x))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_training_step_stays_in_its_arena_whichever_side_runs(optimizer):
    torch.manual_seed(0)
    model = Sides()
    task = Task(model, lambda m, x: m(x).square().mean(), optimizer(model.parameters()), (torch.rand(16, 8),))
    plain, inside, mine, other = both(task)
    for sign in (1, -1, 1, -1):
        x = torch.rand(16, 8) * sign
        assert torch.equal(served(inside, x), plain(x))
    pairs = zip(mine.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


def test_the_arena_is_that_of_the_larger_side():
    task = inference(Sides(), torch.rand(64, 8))
    program = program_of(task)
    layout = best_layout(allocations(task, program))
    plain = make_step(task, program)
    taken = {}
    for sign in (1, -1):
        x = torch.rand(64, 8) * sign
        taken[sign] = peak_bytes(lambda x=x: plain(x), 0).peak_bytes
    assert taken[1] > 2 * taken[-1]
    assert layout.arena == layout.lower_bound
    assert layout.arena - layout.trace.kept_bytes <= taken[1] + 64 * len(layout.trace.requests)


def test_a_loop_is_served_however_often_it_runs():
    torch.manual_seed(0)
    plain, inside, _, _ = both(inference(Passes(), torch.randn(8, 6), torch.tensor(0)))
    for passes in (0, 1, 4, 2):
        x, n = torch.randn(8, 6), torch.tensor(passes)
        found, expected = served(inside, x, n), plain(x, n)
        assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


def test_dead_bytes_of_the_other_side_are_never_read():
    torch.manual_seed(0)
    plain, inside, _, _ = both(inference(Passes(), torch.randn(8, 6), torch.tensor(2)))
    inside.arena.poison = True
    for passes in (3, 0, 4):
        x, n = torch.randn(8, 6), torch.tensor(passes)
        assert all(torch.equal(a, b) for a, b in zip(served(inside, x, n), plain(x, n), strict=True))


@settings(max_examples=8, deadline=None)
@example(NESTED, 0)
@example(NESTED, 1)
@example(LOOPS, 144)
@given(blocks, st.integers(0, 1000))
def test_random_programs_are_served_whichever_way_they_go(block, seed):
    torch.manual_seed(seed)
    plain, inside, _, _ = both(inference(Program(block), *(torch.randn(LENGTH) for _ in range(2))))
    for _ in range(3):
        batch = torch.randn(LENGTH), torch.randn(LENGTH)
        assert torch.equal(served(inside, *batch), plain(*batch))


def test_a_budget_of_an_arena_is_kept_by_both_sides(tmp_path):
    torch.manual_seed(0)
    model = Sides()
    step = peakfold.optimize_inference(model, (torch.rand(64, 8),), "arena:1MiB", time_budget=1)
    assert step.report.arena.runs
    assert step.report.optimized.peak_bytes == step.report.optimized.predicted_peak_bytes
    assert "if holds(0, gt" in step.source
    least = step.report.arena.nbytes
    again = peakfold.optimize_inference(model, (-torch.rand(64, 8),), f"arena:{least}", time_budget=1)
    assert again.report.arena.nbytes <= least
    again.save(tmp_path / "step.zip")
    loaded = peakfold.load(tmp_path / "step.zip", model)
    for rows in (64, 40):
        for sign in (1, -1):
            x = torch.rand(rows, 8) * sign
            with torch.no_grad():
                assert torch.equal(served(again, x), model(x))
            if rows == 64:
                assert torch.equal(served(loaded, x), again(x))


def test_a_side_that_cannot_run_on_the_batch_is_named():
    def far(x, i):
        return torch.cond(x.sum() > 0, lambda v: v[i] * 2, lambda v: v[i * 0] * 2, (x,))

    class Net(nn.Module):
        def forward(self, x, i):
            return far(x, i)

    batch = -torch.rand(4), torch.tensor([9])
    with pytest.raises(UsageError) as caught:
        peakfold.optimize_inference(Net(), batch, "arena:1MiB", time_budget=1, verify=False)
    assert caught.value.what == "a side of a branch, or a pass of a loop, cannot run on this batch"
    assert "out of bounds" in caught.value.got
    assert caught.value.hint == "give the budget without arena:"


def test_a_program_in_its_arena_runs_without_one_too():
    task = inference(Sides(), torch.rand(16, 8))
    program = program_of(task)
    inside = program.running_in(best_layout(allocations(task, program)))
    step = make_step(task, replace(inside, in_arena=False))
    x = -torch.rand(16, 8)
    assert torch.equal(step(x), make_step(task, program)(x))


def test_branches_in_a_loop_in_a_branch_are_all_recorded():
    def deep(x):
        def body(i, v):
            return i + 1, torch.cond(i % 2 == 0, lambda w: w.sin() * w.cos(), lambda w: w * 2, (v,))

        def then(v):
            start = torch.zeros((), dtype=torch.int64)
            return while_loop(lambda i, w: i < 3, body, (start, v))[1]

        return torch.cond(x.sum() > 0, then, lambda v: torch.cat([v, v])[:4] * 1, (x,))

    task = inference(Function(deep), torch.rand(4))
    trace = allocations(task, program_of(task))
    assert len(trace.ways.turns) == 3
    plain, inside, _, _ = both(task)
    for sign in (1, -1):
        x = torch.rand(4) * sign
        assert torch.equal(served(inside, x), plain(x))
