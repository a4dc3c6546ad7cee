"""Several shapes, and several steps, in one arena: its budget holds for all of them."""

import gc
import weakref

import pytest
import torch

import peakfold
from peakfold.errors import InfeasibleError

ROWS = 32


def net(out=64):
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, out)
    return torch.nn.Sequential(*layers)


def inference(memory="arena:1MiB", out=64, **options):
    model = net(out).eval()
    step = peakfold.optimize_inference(
        model, (torch.randn(ROWS, 8),), memory, time_budget=1, verify=False, **options
    )
    return step, model


def training(memory="arena:1MiB", **options):
    def loss_fn(model, x):
        out = model(x)
        return out.square().mean(), out

    model = net()
    step = peakfold.optimize_step(
        model, loss_fn, None, (torch.randn(ROWS, 8),), memory, time_budget=1, verify=False, **options
    )
    return step, model


def lies_in(step, tensor):
    return 0 <= tensor.data_ptr() - step.arena.memory.address < step.arena.memory.size


@pytest.mark.parametrize("holds", ["step", "all"])
@pytest.mark.parametrize("make", [inference, training])
def test_smaller_shapes_take_no_byte_more_than_the_budget(make, holds):
    least = make(arena_holds=holds)[0].arena_bytes
    step, model = make(f"arena:{least}", arena_holds=holds)
    for rows in (ROWS, 31, 16, 9, 3, ROWS):
        x = torch.randn(rows, 8)
        with torch.no_grad():
            expected = model(x)
        returned = step(x)
        found = returned if make is inference else step.outputs
        assert torch.equal(found, expected)
        assert lies_in(step, found)
        assert (step.arena.use.ordinary, step.arena.use.spares) == (0, 0)
        assert step.arena_bytes == least
        del returned, found
        model.zero_grad()


def test_results_of_one_program_lie_where_those_of_another_do():
    step, model = training()
    nbytes, places = step.arena_bytes, set()
    for _ in range(3):
        step(torch.randn(ROWS, 8))  # the first makes gradients, which are there in the others
        places.add(step.outputs.data_ptr())
        assert lies_in(step, step.outputs)
    assert len(places) == 1
    assert step.arena_bytes == nbytes
    assert all(lies_in(step, p.grad) for p in model.parameters())


@pytest.mark.parametrize("holds", ["step", "all"])
def test_a_larger_shape_replaces_the_arena_of_all_others(holds):
    step, model = inference(arena_holds=holds)
    small = torch.randn(ROWS, 8)
    first = step(small)
    expected, before = first.clone(), weakref.ref(step.arena.memory)
    for rows in (40, 64, 100):
        x = torch.randn(rows, 8)
        assert torch.equal(step(x), model(x))
        assert step.arena_bytes == step.report.arena.nbytes == step.arena.memory.size
        memory = step.arena.memory
        for less in (ROWS, rows - 1):
            y = torch.randn(less, 8)
            assert torch.equal(step(y), model(y))
            assert step.arena.memory is memory
            assert (step.arena.use.ordinary, step.arena.use.spares) == (0, 0)
        step(x)
    gc.collect()
    assert before() is None
    assert torch.equal(first, expected)
    assert all(lies_in(step, p) for p in model.parameters()) == (holds == "all")


@pytest.mark.parametrize("holds", ["step", "all"])
def test_a_larger_shape_is_refused_where_it_does_not_fit(holds):
    least = inference(arena_holds=holds)[0].arena_bytes
    step, model = inference(f"arena:{least}", arena_holds=holds)
    for rows in (33, 64):
        with pytest.raises(InfeasibleError, match=f"expected: an arena of {least} bytes"):
            step(torch.randn(rows, 8))
    x = torch.randn(ROWS, 8)
    assert torch.equal(step(x), model(x))
    assert step.arena_bytes == least


def test_a_share_of_eager_is_a_budget_in_bytes_for_every_shape():
    step, _ = inference("arena:100%")
    with pytest.raises(InfeasibleError, match=f"an arena of {step.report.arena.budget_bytes} bytes"):
        step(torch.randn(4 * ROWS, 8))


def test_results_that_are_held_stay_as_they_are_and_take_one_spare_place_for_all_shapes():
    step, model = inference()
    held, expected, spares = None, None, 0
    for rows in (ROWS, 31, 16, 8, 31, ROWS, 3):
        x = torch.randn(rows, 8)
        found = step(x)
        spares += step.arena.use.spares
        assert step.arena.use.ordinary == 0
        assert held is None or torch.equal(held, expected)
        held, expected = found, model(x)
        assert torch.equal(held, expected)
    assert spares <= 2


def test_a_spare_place_that_is_too_small_gives_way():
    step, _ = inference()
    held = [step(torch.randn(ROWS, 8))]
    for rows in (2, 4, 8, 16):
        held.append(step(torch.randn(rows, 8)))
        assert step.arena.use.spares == 1
        held.pop()
    kept = step(torch.randn(3, 8))
    assert step.arena.use.spares == 0
    assert kept.shape == (3, 64)


def test_models_that_share_an_arena_share_the_place_of_results():
    pairs = [inference(out=out) for out in (8, 64)]
    largest = max(step.arena.layout.passing for step, _ in pairs)
    kept = max(step.arena.layout.trace.kept_bytes for step, _ in pairs)
    steps = [step for step, _ in pairs]
    assert peakfold.share_arena(*steps) == largest + kept
    assert [step.arena_bytes for step in steps] == [largest + kept] * 2
    x = torch.randn(ROWS, 8)
    found = steps[0](x)
    then = steps[1](found)
    assert torch.equal(found, pairs[0][1](x))
    assert torch.equal(then, pairs[1][1](found))
    assert [step.arena.use.ordinary for step in steps] == [0, 0]


def test_a_larger_shape_replaces_an_arena_that_is_shared():
    pairs = [inference(out=out, arena_holds="all") for out in (8, 64)]
    steps = [step for step, _ in pairs]
    peakfold.share_arena(*steps)
    held = steps[0](torch.randn(ROWS, 8))
    expected = held.clone()
    x = torch.randn(2 * ROWS, 8)
    assert torch.equal(steps[1](x), pairs[1][1](x))
    for step, model in pairs:
        for rows in (ROWS, 5):
            y = torch.randn(rows, 8)
            assert torch.equal(step(y), model(y))
            assert step.arena.use.ordinary == 0
    assert steps[0].arena.memory is steps[1].arena.memory
    assert steps[0].arena_bytes == steps[1].arena_bytes
    assert torch.equal(held, expected)
