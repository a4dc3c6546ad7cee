"""The check that a program in an arena passes before it is used on a device: bytes and bits as planned."""

from dataclasses import replace

import pytest
import torch
from tests.torch.test_arena import fitted, net, program_of, task

import peakfold
from peakfold.bridge.runtime.arena import Memory
from peakfold.errors import UsageError
from peakfold.pipeline import arena, arena_first_run
from peakfold.pipeline.arena import allocations, best_layout
from peakfold.plan.memory.layout import lay_out


@pytest.fixture(scope="module")
def placed():
    of = task()
    program = program_of(of)
    return of, program.running_in(best_layout(allocations(of, program)))


def test_what_is_as_planned_passes(placed):
    assert arena_first_run.why_not(*placed) == ""


def test_requests_that_are_not_as_planned_are_named(placed):
    of, program = placed
    trace = program.layout.trace
    first = replace(trace.requests[0], size=trace.requests[0].size + 64)
    other = lay_out(replace(trace, requests=(first, *trace.requests[1:])))
    why = arena_first_run.why_not(of, replace(program, layout=other))
    assert why.startswith(f"1 requests were not as planned: {trace.requests[0].size} bytes before")


def test_an_arena_that_is_not_used_to_its_end_is_named(placed):
    of, program = placed
    larger = replace(program.layout, arena=program.layout.arena + 128)
    used = program.layout.arena
    assert arena_first_run.why_not(of, replace(program, layout=larger)) == (
        f"{used} bytes of it were used instead of {used + 128}"
    )


def test_other_bits_are_named_unless_the_program_has_them_by_itself(placed, monkeypatch):
    of, program = placed
    watch, runs = arena_first_run.prove.watch, []

    def spoilt(task, one):
        found = watch(task, one)
        runs.append(one.in_arena)
        if one.in_arena or (len(runs) > 2 and both):
            first, *rest = found.results
            return replace(found, results=(replace(first, tensor=first.tensor + 1), *rest))
        return found

    monkeypatch.setattr(arena_first_run.prove, "watch", spoilt)
    both = False
    assert arena_first_run.why_not(of, program) == "loss of step 1 has other bits there than without it"
    both = True
    runs.clear()
    assert arena_first_run.why_not(of, program) == ""


def test_an_error_in_the_first_run_is_a_reason(placed, monkeypatch):
    def broken(task, one):
        raise RuntimeError("an illegal memory access was encountered\nmore of it")

    monkeypatch.setattr(arena_first_run.prove, "watch", broken)
    assert arena_first_run.why_not(*placed) == "an illegal memory access was encountered"


@pytest.mark.parametrize("good", [True, False])
def test_a_program_that_fails_its_first_run_runs_without_its_arena_and_says_why(good, monkeypatch):
    monkeypatch.setattr(arena_first_run, "is_due", lambda task: True)
    if not good:
        layout_of = arena.best_layout

        def wrong(*given):
            layout = layout_of(*given)
            return replace(layout, offsets=tuple(0 for _ in layout.offsets))

        monkeypatch.setattr(arena, "best_layout", wrong)
    step, model, x = fitted("arena:1MiB")
    said = [note for note in step.report.notes if "without its arena" in note]
    assert torch.equal(step(x), model(x))
    assert (step.report.arena.runs, step.arena is not None, len(said)) == (good, good, not good)
    if not good:
        assert said[0].startswith("the program runs without its arena: in its first run ")
        assert "of it were used instead of" in said[0]


def test_steps_on_several_devices_share_no_arena():
    steps = [fitted("arena:1MiB", verify=False)[0] for _ in range(2)]
    elsewhere = steps[1].arena
    elsewhere.layout = replace(elsewhere.layout, device="cuda:0")
    with pytest.raises(UsageError, match="an arena is on one device") as caught:
        peakfold.share_arena(*steps)
    assert caught.value.got == "cpu, cuda:0"


def test_an_arena_that_is_larger_than_the_machine_is_refused():
    with pytest.raises(UsageError) as caught:
        Memory(1 << 60)
    assert str(caught.value) == (
        "arena: there is no room for the arena\n"
        "  at: cpu\n"
        f"  expected: {1 << 60} bytes\n"
        "  next: free memory there, or allow a smaller arena"
    )


def test_there_is_none_on_the_cpu():
    assert not arena_first_run.is_due(task())


def test_an_arena_on_another_device_holds_nothing_of_the_callers():
    of = replace(task(), model=net().to("meta"))
    assert arena.why_predicted(of, runnable=False) != ""
    found = type("Elsewhere", (), {"device": "cuda:0"})()
    assert arena.why_predicted(found, True, holding=True) == (
        "the program runs without its arena: on cuda:0 it cannot hold the model's own tensors"
    )
