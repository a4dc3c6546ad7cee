"""What was proved and measured is kept: the very same program is not searched, measured or proved again.

Calls are counted, of everything that takes long.
"""

import json
import threading
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import date

import pytest
import torch
from torch import nn

import peakfold
from peakfold.bridge.runtime import profile
from peakfold.cost.costs import Costs
from peakfold.errors import UsageError
from peakfold.ir.plan import Plan
from peakfold.options import from_environment
from peakfold.pipeline import proof_cache, prove
from peakfold.pipeline.before import timeline_before
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.proof_cache import Calibration, Original, Proof, Times, maker
from peakfold.pipeline.task import Task
from peakfold.plan.schedule import planner
from peakfold.report.json import from_json, to_json
from peakfold.report.words import equality

TODAY = f"{date.today()}"
NOTHING = {"watch": 0, "seconds": 0, "optimize": 0, "_measure": 0}
PROOF = Proof(0.0, 1e-9, Times(2.0, 1.0, 1.1, "2026-01-31"), 1000, bit_equal=True)
ENTRIES = (PROOF, Original(1000, True, "2026-01-31"), Calibration(1.1, "2026-01-31"))


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def calls(monkeypatch):
    """Count what takes long: runs of a program, clocks, searches, operators that are measured."""
    count = dict(NOTHING)

    def counted(module, name):
        plain = getattr(module, name)

        def call(*args, **kwargs):
            count[name] += 1
            return plain(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    for module, name in ((prove, "watch"), (prove, "seconds"), (planner, "optimize"), (profile, "_measure")):
        counted(module, name)
    return count


@contextmanager
def counting(calls):
    calls.update(NOTHING)
    found = {}
    yield found
    found.update(calls)


def squared(model, x):
    return model(x).square().mean()


def setting():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(2)]
    model = nn.Sequential(*layers, nn.Linear(16, 1))
    return model, squared, torch.optim.SGD(model.parameters(), lr=0.1), (torch.randn(64, 16),)


def reported(*parts, **kwargs):
    kwargs = {"iterations": 300, "time_budget": 30, "memory": "80%", **kwargs}
    return peakfold.optimize_step(*(parts or setting()), **kwargs).report


@pytest.mark.parametrize("limits", [{}, {"memory": None, "latency": 3.0}])
def test_the_same_request_again_runs_searches_and_measures_nothing_and_says_so(calls, limits):
    first = reported(**limits)
    with counting(calls) as again:
        second = reported(**limits)
    assert again == NOTHING
    assert second.texts == first.texts
    assert second.optimized == first.optimized
    assert second.eager == first.eager
    assert second.equal == replace(first.equal, proved_before=TODAY)
    assert first.equal.proved_before is None
    same = "same program, weights, batch and machine"
    assert f"proved equal on {TODAY}, not run again: {same}" in second.notes
    assert f"times are as measured on {TODAY}: {same}" in second.notes
    assert f"eager was measured on {TODAY}: same step, weights, batch and machine" in second.notes
    assert equality(second.equal).text.endswith(f"; proved on {TODAY}, not again now")
    assert json.loads(to_json(second))["equal"]["proved_before"] == TODAY
    assert from_json(to_json(second)).equal == second.equal


def test_it_is_proved_again_when_asked_and_under_another_budget(calls):
    reported()
    proved = calls["watch"]
    with counting(calls) as again:
        report = reported(verify="again")
    assert again == {"watch": proved, "seconds": 1, "optimize": 0, "_measure": 0}
    assert report.equal.proved_before is None
    assert not any("not run again" in note for note in report.notes)
    with counting(calls) as other:
        report = reported(memory="90%")
    assert other == {"watch": proved, "seconds": 1, "optimize": 1, "_measure": 0}
    assert report.equal.ok
    assert report.equal.proved_before is None


def test_whatever_a_step_starts_from_makes_it_another(monkeypatch):
    model, loss_fn, optimizer, batch = setting()
    task = Task(model, loss_fn, optimizer, batch)
    captured = task.capture()
    program = emit_plan(captured, Plan(captured.graph.digest), Costs({}, {}))
    before = timeline_before(task)

    def keys(one=task):
        numbers = proof_cache.numbers_of(one)
        return proof_cache.key_of(numbers, program), proof_cache.key_of_eager(numbers, captured, before)

    found = [keys()]
    assert keys(task.clone()) == found[0]
    found.append(keys(task.with_batch((batch[0] + 1,))))
    found.append(keys(replace(task, clip_grad_norm=1.0)))
    optimizer.param_groups[0]["lr"] = 0.2
    found.append(keys())
    optimizer.state[model[0][0].weight]["momentum_buffer"] = torch.zeros(16, 16)
    found.append(keys())
    model[0][0].weight.grad = torch.ones(16, 16)
    found.append(keys())
    nn.init.ones_(model[0][0].weight)
    found.append(keys())
    monkeypatch.setattr(proof_cache, "machine", lambda threads: "another")
    found.append(keys())
    monkeypatch.setattr(proof_cache, "SETTINGS", (lambda: "another",))
    found.append(keys())
    assert len({key for pair in found for key in pair}) == 2 * len(found)


def test_a_loss_that_is_not_finite_is_said_again():
    model, _, optimizer, batch = setting()
    parts = (model, lambda m, x: m(x).mean() * float("nan"), optimizer, batch)
    for _ in range(2):
        report = reported(*parts)
        assert any("the loss is not finite" in note for note in report.notes)


def test_entries_of_another_peakfold_are_dropped_with_a_word_and_made_again():
    reported()
    kept = list((from_environment().cache / "proofs").iterdir())
    for path in kept:
        path.write_text(json.dumps({**json.loads(path.read_text()), "maker": "0.0 older"}))
    report = reported()
    assert "a proof that was kept is of another peakfold: it was dropped, and made again" in report.notes
    assert any(note.startswith("a measurement of eager that was kept is of another") for note in report.notes)
    assert report.equal.proved_before is None
    assert all(json.loads(path.read_text())["maker"] == maker() for path in kept)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_comes_back_as_it_was_or_is_named_whatever_is_wrong_with_it(tmp_path, entry):
    kind, path = type(entry), tmp_path / "key.json"
    assert proof_cache.load(tmp_path, "key", kind) == (None, None)
    assert proof_cache.store(tmp_path, "key", entry) is None
    assert proof_cache.load(tmp_path, "key", kind) == (entry, None)
    whole = {"maker": maker(), **asdict(entry)}
    for name in asdict(entry):
        for wrong in ({k: v for k, v in whole.items() if k != name}, {**whole, name: [None]}):
            path.write_text(json.dumps(wrong))
            found, fault = proof_cache.load(tmp_path, "key", kind)
            assert found is None
            assert "is corrupt, it was made again; the old file is" in fault
            assert not path.exists()


def test_several_that_keep_the_same_entry_read_it_whole(tmp_path):
    found = []

    def work():
        for _ in range(20):
            found.append(proof_cache.store(tmp_path, "key", PROOF))
            found.append(proof_cache.load(tmp_path, "key", Proof))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert set(found) == {None, (PROOF, None)}
    assert [path.name for path in tmp_path.iterdir()] == ["key.json"]


def test_another_way_to_verify_is_refused():
    with pytest.raises(UsageError) as caught:
        reported(verify="twice")
    assert str(caught.value) == (
        "options: there is no such way to verify\n"
        "  expected: once (a proof of the very same program that was made before holds) or again\n"
        "  got: 'twice'\n  next: leave it out, or give verify='again'"
    )
