"""The public calls, end to end, on small models."""

import copy
import io
import multiprocessing
import threading
from dataclasses import replace
from datetime import date

import pytest
import torch
from rich.console import Console
from torch import nn

import peakfold
from peakfold.errors import CacheError, CaptureError, InfeasibleError, PlanError, UsageError
from peakfold.options import from_environment
from peakfold.pipeline import proof_cache
from peakfold.pipeline.batch import resized
from peakfold.pipeline.optimize import optimize
from peakfold.pipeline.proof_cache import Proof
from peakfold.pipeline.request import request
from peakfold.pipeline.task import Task
from peakfold.report.terminal import render_estimate

ROWS = 256


pytestmark = pytest.mark.usefixtures("own_cache")


def deep(width=32, depth=6, dropout=0.1):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout)) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def squared(model, x):
    return model(x).square().mean()


def setting(optimizer=torch.optim.SGD, **kwargs):
    model = deep()
    return model, squared, optimizer(model.parameters(), lr=0.1, **kwargs), (torch.randn(ROWS, 32),)


def optimized(model, loss_fn, optimizer, batch, **kwargs):
    kwargs = {"iterations": 2000, "time_budget": 30, "verify": False, **kwargs}
    return peakfold.optimize_step(model, loss_fn, optimizer, batch, **kwargs)


def assert_same_training(model, step, loss_fn, optimizer, batches, schedule=None):
    """Train a copy by the eager loop and the model by the step; every bit must agree at the end."""
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    torch.manual_seed(7)
    losses = [step(*batch) for batch in batches]
    torch.manual_seed(7)
    for batch, loss in zip(batches, losses, strict=True):
        expected = loss_fn(twin, *batch)
        expected.backward()
        twin_optimizer.step()
        twin_optimizer.zero_grad()
        assert torch.equal(expected, loss)
    for a, b in zip(twin.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(twin_optimizer.state.values(), optimizer.state.values(), strict=True):
        assert a.keys() == b.keys()
        assert all(
            torch.equal(torch.as_tensor(a[key]), torch.as_tensor(b[key])) for key in a if a[key] is not None
        )


@pytest.mark.parametrize(
    ("optimizer", "kwargs"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {}),
    ],
)
def test_a_budget_is_kept_and_every_bit_agrees(optimizer, kwargs):
    model, loss_fn, optimizer, batch = setting(optimizer, **kwargs)
    step = optimized(model, loss_fn, optimizer, batch, memory="70%", verify=True)
    report = step.report
    assert report.optimized.peak_bytes <= report.limits.memory_bytes == int(0.7 * report.eager.peak_bytes)
    assert report.optimized.peak_bytes == report.optimized.predicted_peak_bytes
    assert report.equal.ok
    assert report.equal.bit_equal
    assert_same_training(model, step, loss_fn, optimizer, [(torch.randn(ROWS, 32),) for _ in range(3)])


def test_clipping_by_norm_and_a_gradient_scaler():
    model, loss_fn, optimizer, batch = setting(torch.optim.AdamW)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    step = optimized(
        model, loss_fn, optimizer, batch, memory="90%", verify=True, scaler=scaler, clip_grad_norm=0.01
    )
    assert step.report.equal.bit_equal
    assert step.report.optimized.peak_bytes <= step.report.limits.memory_bytes


def test_schedulers_checkpoints_and_eager_steps_in_between_keep_working():
    model, loss_fn, optimizer, batch = setting(torch.optim.AdamW)
    step = optimized(model, loss_fn, optimizer, batch, memory="75%")
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (optimizer, twin_optimizer)]
    for index in range(4):
        torch.manual_seed(index)
        if index == 2:
            squared(model, *batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            step(*batch)
        torch.manual_seed(index)
        squared(twin, *batch).backward()
        twin_optimizer.step()
        twin_optimizer.zero_grad()
        for scheduler in schedulers:
            scheduler.step()
    for key, tensor in twin.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[key])
    mine, theirs = optimizer.state_dict()["state"], twin_optimizer.state_dict()["state"]
    assert all(torch.equal(mine[i][key], theirs[i][key]) for i in theirs for key in theirs[i])


def test_a_batch_of_another_shape_is_captured_anew_and_kept():
    model, loss_fn, optimizer, batch = setting()
    step = optimized(model, loss_fn, optimizer, batch, memory="90%")
    first = step.source
    small = (torch.randn(ROWS // 2, 32),)
    assert_same_training(model, step, loss_fn, optimizer, [batch, small, batch, small])
    assert step.source != first


def test_a_program_that_is_made_anew_says_that_it_was_not_compared():
    model, loss_fn, optimizer, batch = setting()
    step = optimized(model, loss_fn, optimizer, batch, verify=True, iterations=20)
    said = "made anew for another call than the first: not compared with eager"
    assert step.report.equal.ok
    assert said not in step.report.notes
    model.eval()
    step(*batch)
    assert step.report.equal.ok is None
    assert said in step.report.notes


def test_save_and_load(tmp_path):
    model, loss_fn, optimizer, batch = setting(torch.optim.AdamW)
    step = optimized(model, loss_fn, optimizer, batch, memory="75%")
    step.save(tmp_path / "step.zip")
    loaded = peakfold.load(tmp_path / "step.zip", model, optimizer)
    assert loaded.source == step.source
    assert loaded.report == step.report
    loaded.save(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "step.zip").read_bytes()
    assert_same_training(model, loaded, loss_fn, optimizer, [batch, batch])


def test_inference_within_a_budget():
    model = deep(dropout=0.0).eval()
    x = torch.randn(ROWS, 32)
    fn = peakfold.optimize_inference(model, (x,), iterations=500, time_budget=10)
    assert fn.report.equal.ok
    with torch.no_grad():
        assert torch.equal(fn(x), model(x))


def test_without_an_optimizer_gradients_add_to_what_is_there():
    model, loss_fn, _, batch = setting()
    twin = copy.deepcopy(model)
    step = optimized(model, loss_fn, None, batch)
    for _ in range(2):
        torch.manual_seed(3)
        step(*batch)
        torch.manual_seed(3)
        loss_fn(twin, *batch).backward()
    assert all(
        torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )


def test_a_budget_above_what_the_step_takes_is_said_to_ask_for_nothing():
    step = optimized(*setting(), memory="400%")
    assert not step.plan.recompute
    assert any("asks for nothing" in note for note in step.report.notes)


def test_a_budget_below_the_floor_is_refused_with_the_floor_and_a_bound():
    with pytest.raises(InfeasibleError) as caught:
        optimized(*setting(), memory=40_000)
    assert caught.value.exit_code == 3
    assert caught.value.lowest_peak_bytes > caught.value.lower_bound_bytes > 40_000


@pytest.mark.parametrize("memory", ["4 gigs", "-1", "0", "", "nan", True])
def test_a_budget_that_cannot_be_read(memory):
    with pytest.raises(UsageError, match="budget"):
        optimized(*setting(), memory=memory)


def test_a_latency_limit_alone_lowers_memory():
    model, loss_fn, optimizer, batch = setting()
    free = optimized(model, loss_fn, optimizer, batch)
    tight = optimized(model, loss_fn, optimizer, batch, latency=3.0, verify=True)
    assert tight.report.optimized.peak_bytes < free.report.optimized.predicted_peak_bytes
    assert tight.report.latency_ratio <= 3.0


def test_the_same_request_gives_the_same_plan_and_source(tmp_path, monkeypatch):
    texts = []
    costs = tmp_path / "cache" / "costs.sqlite"
    for _ in range(2):
        step = optimized(*setting(torch.optim.AdamW), memory="70%", seed=5)
        texts.append((step.plan, step.source))
        for kept in (costs.parent / "plans").iterdir():
            kept.unlink()
    assert texts[0] == texts[1]


def test_a_plan_is_kept_for_the_next_time():
    first = optimized(*setting(), memory="70%")
    again = optimized(*setting(), memory="70%", seed=0)
    assert again.plan == first.plan
    assert again.report.search == first.report.search


def test_a_corrupt_plan_cache_is_moved_aside():
    first = optimized(*setting(), memory="70%")
    folder = from_environment().cache / "plans"
    (kept,) = folder.iterdir()
    kept.write_text("{not json")
    assert optimized(*setting(), memory="70%").plan == first.plan
    assert [path.suffix for path in sorted(folder.iterdir())] == [".corrupt", ".json"]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "file" / "below"))
    step = optimized(*setting(), memory="70%")
    assert any("cache" in note or "kept" in note for note in step.report.notes)


def test_a_plan_given_as_text_is_applied_and_what_is_not_legal_refused():
    model, loss_fn, optimizer, batch = setting()
    task = Task(model, loss_fn, optimizer, batch)

    def applied(text):
        asked = request(None, None, 0, 0, 0, "eager", True, plan=text)
        return optimize(task, asked).report

    base = applied("peakfold plan 1\n")
    again = applied("peakfold plan 1\nrecompute 0.0.addmm for its backward\n")
    assert again.equal.ok
    assert "recompute" in again.texts.plan
    assert "addmm (again)" in " ".join(again.timelines.after.steps)
    assert again.optimized.peak_bytes == again.optimized.predicted_peak_bytes <= base.optimized.peak_bytes
    with pytest.raises(PlanError, match="nothing_like_it"):
        applied("peakfold plan 1\nrecompute nothing_like_it for its backward\n")
    with pytest.raises(PlanError, match="0000"):
        applied("peakfold plan 1 for graph 0000\n")


def test_a_loss_that_is_not_a_number_is_returned_as_eager_returns_it():
    model, loss_fn, optimizer, batch = setting()
    step = optimized(model, loss_fn, optimizer, batch)
    assert step(torch.full((ROWS, 32), float("nan"))).isnan()


def test_ctrl_c_in_the_search_gives_the_best_plan_so_far(monkeypatch):
    model, loss_fn, optimizer, batch = setting()
    calls = []

    def progress(stage, done, note=""):
        if stage == "search" and "best" in note:
            calls.append(note)
            if len(calls) == 3:
                raise KeyboardInterrupt

    step = optimized(model, loss_fn, optimizer, batch, memory="70%", iterations=10**9, progress=progress)
    assert step.report.search.stop_reason == "interrupted"
    assert step.report.optimized.predicted_peak_bytes <= step.report.limits.memory_bytes
    assert any("interrupted" in note for note in step.report.notes)


def test_a_step_called_from_two_threads_is_refused_in_one():
    model, loss_fn, optimizer, batch = setting()
    inside, leave = threading.Event(), threading.Event()

    step = optimized(model, loss_fn, optimizer, batch)
    original = step._run

    def slow(args, kwargs):
        inside.set()
        leave.wait(10)
        return original(args, kwargs)

    step._run = slow
    worker = threading.Thread(target=step, args=batch)
    worker.start()
    inside.wait(10)
    with pytest.raises(UsageError, match="another thread"):
        step(*batch)
    leave.set()
    worker.join()


def _optimize_into(folder, results):
    import os

    os.environ["PEAKFOLD_CACHE"] = folder
    torch.set_num_threads(1)
    results.put(optimized(*setting(), memory="70%").report.optimized.predicted_peak_bytes)


def test_two_optimizations_at_once_share_one_cache(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [
        context.Process(target=_optimize_into, args=(str(tmp_path / "one"), results)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join()
    budget = optimized(*setting(), memory="70%").report.limits.memory_bytes
    assert all(peak <= budget for peak in found)


def test_two_threads_that_optimize_take_turns():
    settings = [setting(), setting(torch.optim.AdamW)]
    peaks = []

    def work(mine):
        report = optimized(*mine, memory="80%", verify=True).report
        peaks.append(report.optimized.peak_bytes <= report.limits.memory_bytes)

    workers = [threading.Thread(target=work, args=(mine,)) for mine in settings]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert peaks == [True, True]


def test_what_is_drawn_again_takes_no_bytes_that_were_not_predicted():
    model, loss_fn, optimizer, _ = setting()
    step = optimized(model, loss_fn, optimizer, (torch.randn(352, 32),), memory=303_000, verify=True)
    assert "generator=" in step.source
    assert step.report.optimized.peak_bytes == step.report.optimized.predicted_peak_bytes


def test_a_proof_is_kept_for_the_same_program_weights_and_batch_alone():
    mine = setting()
    reports = [optimized(*mine, memory="70%", verify=True).report for _ in range(2)]
    assert reports[1].equal == replace(reports[0].equal, proved_before=f"{date.today()}")
    assert not any("proved equal on" in note for note in reports[0].notes)
    assert any("times are as measured on 2" in note for note in reports[1].notes)
    assert reports[1].latency_ratio == reports[0].latency_ratio
    with torch.no_grad():
        next(mine[0].parameters()).add_(1.0)
    again = optimized(*mine, memory="70%", verify=True).report
    assert again.equal.ok
    assert again.equal.proved_before is None


def test_a_corrupt_saved_step_is_refused(tmp_path):
    model, _, optimizer, _ = setting()
    (tmp_path / "step.zip").write_bytes(b"not a zip")
    with pytest.raises(CacheError):
        peakfold.load(tmp_path / "step.zip", model, optimizer)


def test_an_operator_outside_the_tables_is_a_barrier_that_the_report_names():
    @torch.library.custom_op("peakfold_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(lambda x: torch.empty_like(x))
    twice.register_autograd(lambda ctx, grad: twice(grad))
    model = deep(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = optimized(
        model,
        lambda m, x: twice(m(x)).square().mean(),
        optimizer,
        (torch.randn(ROWS, 32),),
        memory="80%",
        verify=True,
    )
    assert step.report.equal.ok
    assert any("twice" in name for name in step.report.barriers)


def test_data_dependent_control_flow_names_the_line():
    model, _, optimizer, batch = setting()

    def loss_fn(model, x):
        y = model(x).mean()
        return y if y > 0 else -y

    with pytest.raises(CaptureError, match=r"test_pipeline\.py:\d+") as caught:
        optimized(model, loss_fn, optimizer, batch)
    assert caught.value.exit_code == 4


def test_estimate_runs_nothing_and_names_the_kinds():
    model = deep().to("meta")
    batch = (torch.empty(ROWS, 32, device="meta"),)
    found = peakfold.estimate(model, squared, torch.optim.SGD(model.parameters(), lr=0.1), batch)
    measured = optimized(*setting(), verify=True).report.eager
    assert measured.measured
    assert abs(found.eager.peak_bytes - measured.peak_bytes) <= found.peak_error * measured.peak_bytes
    assert sum(found.components.values()) == found.eager.peak_bytes
    known = peakfold.estimate(*setting())
    assert known.basis == "every operator was measured on this machine before"
    assert 0 < known.time_error < found.time_error <= 1
    assert f"+- {known.time_error:.0%}" in told(known)


def told(estimate):
    console = Console(record=True, width=80, file=io.StringIO())
    render_estimate(estimate, console)
    return console.export_text()


def test_the_largest_batch_fits_and_the_next_does_not():
    model, loss_fn, optimizer, batch = setting()
    n = peakfold.largest_batch(model, loss_fn, optimizer, batch, memory="300kB")
    assert n > 1
    fitting = (torch.randn(n, 32),)
    step = optimized(model, loss_fn, optimizer, fitting, memory=300_000, verify=True, iterations=None)
    assert step.report.optimized.peak_bytes <= 300_000
    with pytest.raises(InfeasibleError):
        optimized(model, loss_fn, optimizer, (torch.randn(2 * n, 32),), memory=300_000)


def test_resizing_keeps_what_does_not_have_the_length_of_the_batch():
    x, table = torch.ones(4, 3), torch.ones(5, 4)
    bigger, same = resized((x, table), 4, 9)
    assert bigger.shape == (9, 3)
    assert same is table


def test_where_eager_does_not_fit_its_figures_are_predicted_and_a_part_of_the_batch_is_compared(monkeypatch):
    monkeypatch.setattr("peakfold.pipeline.original.free_bytes", lambda device: 800_000)
    report = optimized(*setting(), memory="70%", verify=True).report
    assert not report.eager.measured
    assert report.eager.peak_bytes > 0
    assert report.latency_ratio is None
    assert report.equal.ok
    assert report.equal.batch.startswith("the first ")
    assert any("does not fit" in note for note in report.notes)


def test_a_given_plan_over_the_budget_is_refused():
    task = Task(*setting())
    for verify in (False, True):
        asked = request("1kB", None, 0, 0, 0, "eager", verify, plan="peakfold plan 1\n")
        with pytest.raises(InfeasibleError) as caught:
            optimize(task, asked)
        assert str(caught.value).startswith(
            "search: the plan is over the limits\n  expected: at most 1.0 kB (1kB)\n  got: "
        )
        assert "  next: change the plan, or its limits" in str(caught.value)
        assert caught.value.lowest_peak_bytes > 1000


def test_a_loss_that_is_nan_is_said():
    model, _, optimizer, batch = setting()
    step = optimized(model, lambda m, x: m(x).mean() * float("nan"), optimizer, batch, verify=True)
    assert step.report.equal.bit_equal
    assert any("the loss is not finite" in note for note in step.report.notes)


def test_a_step_on_the_meta_device_cannot_be_had():
    model = nn.Linear(8, 1, device="meta")
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError) as caught:
        optimized(model, squared, sgd, (torch.ones(4, 8, device="meta"),), verify=True)
    assert str(caught.value) == (
        "options: the step is on the meta device: there is nothing that could run\n"
        "  expected: a model and a batch with numbers\n"
        "  next: peakfold.estimate and peakfold.largest_batch need none"
    )


def test_fit_on_a_simulated_device_is_all_that_it_has():
    asked = request("fit", None, 0, 0, 0, "eager", True, device="sim:rtx3090")
    assert optimize(Task(*setting()), asked).report.limits.memory_bytes == 24 * 2**30


def test_plans_that_cannot_be_kept_or_read_are_said(tmp_path):
    optimized(*setting(), memory="70%")
    (kept,) = (from_environment().cache / "plans").iterdir()
    kept.write_text("{not json")
    notes = optimized(*setting(), memory="70%").report.notes
    assert any("a plan that was kept is corrupt, it was searched for again" in note for note in notes)


def test_proofs_that_cannot_be_read_are_said_and_made_again():
    optimized(*setting(), memory="70%", verify=True)
    folder = from_environment().cache / "proofs"
    (kept,) = (path for path in folder.iterdir() if "times" in path.read_text())
    whole = kept.read_text()
    for junk in (b"{not json", b"\xff\xfe", b"[]", b"null", whole[:-9].encode(), b"[" * 100_000):
        kept.write_bytes(junk)
        found, fault = proof_cache.load(folder, kept.stem, Proof)
        assert found is None
        aside = kept.with_suffix(".corrupt")
        assert fault == f"a proof that was kept is corrupt, it was made again; the old file is {aside}"
        assert not kept.exists()
        assert aside.read_bytes() == junk
    kept.mkdir()
    assert (
        "a proof that was kept cannot be read: Is a directory"
        in proof_cache.load(folder, kept.stem, Proof)[1]
    )
    kept.rmdir()
    kept.write_text("{not json")
    report = optimized(*setting(), memory="70%", verify=True).report
    assert any("a proof that was kept is corrupt, it was made again" in note for note in report.notes)
    assert report.equal.ok
    assert proof_cache.load(folder, kept.stem, Proof)[0] is not None


def test_a_dump_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PEAKFOLD_DUMP", str(tmp_path / "file" / "below"))
    with pytest.raises(CacheError, match="report: the results cannot be written"):
        optimized(*setting())
