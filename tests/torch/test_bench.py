"""One tiny workload with everything that the benchmark does."""

import math
from dataclasses import replace

import pytest
import torch

from peakfold.bench import peers, planned, runner
from peakfold.bench.best import best_at
from peakfold.bench.observe import is_equal, observe
from peakfold.bench.planned import Plans
from peakfold.bench.rows import PEAKFOLD, Results
from peakfold.bench.settings import Settings
from peakfold.bench.workload import run_workload
from peakfold.errors import InfeasibleError
from peakfold.pipeline.arena import laid_out
from peakfold.pipeline.task import Task
from peakfold.workloads import build
from peakfold.workloads.target import Target

SETTINGS = Settings(
    workloads=("bert",),
    size="tiny",
    peers=("checkpoint-1", "accumulate-2", "accumulate-4+checkpoint-1"),
    memory=("80%", "60%", "1kB"),
    latency=(4.0,),
    time_budget=0.2,
    repeats=1,
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAKFOLD_CACHE", str(tmp_path_factory.mktemp("cache")))
        found, said = {}, []
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        run_workload(
            "bert", SETTINGS, lambda *words: said.append(words), lambda row: found.update({row.name: row})
        )
        torch.set_num_threads(threads)
    assert {stage for stage, *_ in said} == {"build", "memory", "capture", "profile", "search", "time"}
    return found


def test_all_that_was_asked_for_has_a_row(rows):
    beside = ("+2%", "-1%", "-2%", "-5%", "-0.5%", "-1.5%", "-4%")
    assert [name for name in rows if not name.endswith(beside)] == [
        "eager",
        "checkpoint-1",
        "accumulate-2",
        "accumulate-4+checkpoint-1",
        "peakfold none",
        "peakfold memory 80%",
        "peakfold memory 60%",
        "peakfold memory 1kB",
        "peakfold latency 4.00",
        "peakfold as eager",
        "peakfold as checkpoint-1",
    ]


def test_every_program_computes_what_eager_does(rows):
    ran = [row for row in rows.values() if not row.error]
    assert all(row.equal for row in ran)
    assert all(row.max_error == 0 for row in ran if "accumulate" not in row.name)


def test_peaks_are_the_predicted_ones_and_within_the_budget(rows):
    plans = [row for row in rows.values() if row.variant == PEAKFOLD and not row.error]
    assert all(row.peak_bytes == row.predicted_peak_bytes for row in plans)
    for share in (0.8, 0.6):
        assert rows[f"peakfold memory {share:.0%}"].memory_ratio <= share
    assert rows["peakfold latency 4.00"].peak_bytes >= rows["peakfold latency 4.00"].lower_bound_bytes


def test_what_ran_is_timed_relative_to_eager(rows):
    eager = rows["eager"]
    assert (eager.memory_ratio, eager.latency_ratio) == (1.0, 1.0)
    for row in rows.values():
        if not row.error:
            assert row.latency_ratio == row.cpu_seconds / eager.cpu_seconds


def test_a_budget_that_cannot_be_kept_is_a_row(rows):
    row = rows["peakfold memory 1kB"]
    assert row.error.startswith("InfeasibleError: plan: no program within the budget was found")
    assert (row.peak_bytes, row.latency_ratio) == (None, None)


def test_plans_a_little_beside_a_limit_of_time_run_too():
    plans = Plans(Task.of(build("bert", "tiny")), Settings(time_budget=0.2), lambda *words: None)
    limit = 1.15 * plans.plain.timeline.seconds
    shares = {"t +2%": 1.02, "t -0.5%": 0.995, "t -5%": 0.95}
    found = {one.constraint: one.program for one in plans.within_time("t", 1.15, tuple(shares.values()))}
    assert list(found) == ["t", *shares]
    for name, share in shares.items():
        assert found[name].timeline.seconds <= share * limit * (1 + 1e-9)
    peaks = [found[name].timeline.peak for name in shares]
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[-1]


def test_the_comparison_can_be_made(rows):
    (best,) = best_at(Results(tuple(rows.values())), [math.inf])
    assert best.peakfold < best.peer
    assert best.bound < best.peakfold


def test_a_peer_that_fails_is_a_row_with_its_message(tmp_path, monkeypatch):
    def broken(target, chunks):
        raise RuntimeError("of all things")

    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))
    monkeypatch.setattr(peers, "accumulate", broken)
    quick = Settings(size="tiny", peers=("accumulate-2",), memory=(), latency=(), matched=False, repeats=1)
    found = {}
    run_workload("bert", quick, lambda *words: None, lambda row: found.update({row.name: row}))
    assert list(found) == ["eager", "accumulate-2", "peakfold none"]
    assert found["accumulate-2"].error == "RuntimeError: of all things"
    assert found["peakfold none"].latency_ratio > 0


def test_programs_run_in_arenas_that_count_whole():
    asked = Settings(
        size="tiny",
        peers=("checkpoint-1",),
        memory=("60%",),
        latency=(),
        matched=False,
        time_budget=0.2,
        repeats=1,
        arena=True,
    )
    found = {}
    run_workload("bert", asked, lambda *words: None, lambda row: found.update({row.name: row}))
    ran = {name: row for name, row in found.items() if not row.error}
    assert {name: row.allocator for name, row in ran.items() if row.variant != PEAKFOLD} == {
        "eager": "torch",
        "checkpoint-1": "torch",
    }
    mine = [row for row in ran.values() if row.variant == PEAKFOLD]
    assert {row.allocator for row in mine} == {"arena"}
    assert all(row.peak_bytes == row.predicted_peak_bytes for row in mine)
    assert all(row.equal and row.max_error == 0 for row in mine)
    assert all(row.latency_ratio for row in mine)
    assert ran["peakfold memory 60%"].memory_ratio <= 0.6


def test_a_budget_is_for_all_of_the_arena(monkeypatch):
    """Live bytes within it are not enough: a search with fewer of them follows."""
    plans = Plans(Task.of(build("bert", "tiny")), Settings(time_budget=0.2, arena=True), lambda *words: None)
    asked, more = [], [5000]

    def larger(task, program, capacity, *, run, seed):
        found = laid_out(task, program, capacity, run=run, seed=seed)
        layout = replace(found.layout, arena=found.layout.arena + more[-1])
        asked.append((capacity, found.timeline.peak))
        return replace(found, layout=layout)

    monkeypatch.setattr(planned, "laid_out", larger)
    budget = int(0.8 * plans.plain.timeline.peak)
    (one,) = plans.within_bytes("memory 80%", budget)
    assert one.program.peak <= budget
    assert one.program.timeline.peak <= budget - 5000
    assert {capacity for capacity, _ in asked} == {budget - plans.plain.timeline.resident}
    monkeypatch.setattr(planned, "ATTEMPTS", 1)
    more.append(budget)
    with pytest.raises(InfeasibleError, match="no plan was found whose arena is within the budget"):
        plans.within_bytes("memory", one.program.timeline.peak)


def test_what_a_program_holds_beside_the_task_counts():
    task, constant = Task.of(build("bert", "tiny")), torch.ones(10)

    def made(mine):
        return peers.eager(Target(mine.model, mine.loss_fn, mine.optimizer, mine.batch))

    alone, _ = observe(made, task)
    beside, _ = observe(made, task, original=alone, constants=(constant, constant[2:]), arena=7)
    assert beside.peak_bytes == alone.peak_bytes + constant.nbytes + 7


def test_what_differs_is_seen():
    task = Task.of(build("bert", "tiny"))

    def made(mine):
        return peers.eager(Target(mine.model, mine.loss_fn, mine.optimizer, mine.batch))

    def other(mine):
        mine.optimizer.param_groups[0]["lr"] *= 2
        return made(mine)

    eager, itself = observe(made, task)
    _, again = observe(made, task, original=eager)
    _, different = observe(other, task, original=eager)
    assert itself.bit_equal
    assert again.bit_equal
    assert not is_equal(different)


def test_a_workload_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))
    quick = Settings(("bert",), "tiny", (), (), (), matched=False, repeats=1)
    results = runner.run(quick)
    assert [row.name for row in results.rows] == ["eager", "peakfold none"]
    assert results.environment["threads"] == "1"
    assert results.complete


def test_a_fault_that_is_known_needs_no_traceback(tmp_path, monkeypatch):
    """The workloads cannot be built where their package is missing."""
    (tmp_path / "monai.py").write_text("raise ModuleNotFoundError(name='monai')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (row,) = runner.run(Settings(("bert",), "tiny", (), (), (), matched=False)).rows
    assert row.variant == ""
    assert row.error.startswith("the process ended with code 2: target: the workloads need a package")
    assert "Traceback" not in row.error
