import os
import signal
import threading

import pytest
import torch

import peakfold
from peakfold.pipeline.ctrl_c import postponed


def press():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10):
        pass


def test_the_first_is_noted_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def twice():
        with postponed() as ctrl_c:
            seen.append(ctrl_c.pressed)
            press()
            seen.append(ctrl_c.pressed)
            press()

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert seen == [False, True]
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_change_nothing():
    seen = []

    def work():
        with postponed() as ctrl_c:
            seen.append((signal.getsignal(signal.SIGINT), ctrl_c.pressed))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(signal.getsignal(signal.SIGINT), False)]


def test_a_search_that_is_interrupted_gives_its_best_plan(monkeypatch, tmp_path):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))
    layers = [torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU()) for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    said = []

    def progress(stage, done, note=""):
        if stage == "search" and "best" in note and not said:
            said.append(note)
            press()

    step = peakfold.optimize_step(
        model,
        lambda m, x: m(x).square().mean(),
        sgd,
        (torch.zeros(256, 32),),
        memory="70%",
        time_budget=600,
        progress=progress,
    )
    assert step.report.search.stop_reason == "interrupted"
    assert "the search was interrupted: this is the best plan that it had found" in step.report.notes
    assert step.report.equal.bit_equal
    assert step.report.memory_ratio <= 0.7
