"""The figures of the paper: what is asked for, the random networks, and their JSON."""

import json
import os
import signal
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace

import pytest

from peakfold.bench.figures import bars, convergence
from peakfold.bench.figures import run as figures
from peakfold.bench.figures.scheduling import runs, summary
from peakfold.bench.nasnet import changed, network
from peakfold.cli.failures import guarded
from peakfold.cli.main import app
from peakfold.errors import UsageError
from peakfold.plan.reorder.incremental import reschedule, whole


def test_a_figure_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="no such figure"):
        figures.asked_of(8, (), "cpu", "cpu", 1.0)


@pytest.mark.parametrize("training", [True, False])
def test_random_networks_and_rewrites_of_them_have_valid_orders(training):
    for seed in range(5):
        problem = network(seed, 2, training)
        assert problem.is_order(range(problem.size))
        for run in range(5):
            after = changed(problem, range(problem.size), Random(run))
            assert after.problem.is_order(after.order)
            assert after.problem.size > problem.size


def test_the_same_seed_gives_the_same_networks():
    assert network(3, 2) == network(3, 2) != network(4, 2)


def test_incremental_scheduling_is_compared_with_the_whole():
    rows = list(runs(figures.asked_of(14, (), "cpu", "cpu", 0.01)))
    found = summary(rows)
    assert found["runs"] == len(rows) >= 1
    assert all(row["incremental_peak"] >= row["full_peak"] for row in rows if row["best_first_is_exact"])
    assert found["equal"] == sum(row["incremental_peak"] == row["full_peak"] for row in rows)


def test_incremental_scheduling_comes_to_the_peak_of_the_whole():
    made, same = {}, 0
    for run in range(50):
        if run % 5 not in made:
            problem = network(run % 5, 4)
            made[run % 5] = problem, whole(problem, range(problem.size)).order
        problem, order = made[run % 5]
        after = changed(problem, order, Random(f"0/{run}"))
        near = reschedule(after.problem, after.order, after.items)
        same += near.peak == whole(after.problem, after.order).peak
    assert same >= 49


def test_the_command_writes_json(tmp_path):
    file = tmp_path / "figure.json"
    arguments = ["bench", "--figure", "14", "--time-budget", "0.01", "--json", str(file)]
    assert guarded(app, arguments) == 0
    found = json.loads(file.read_text())
    assert found["figure"] == 14
    assert found["complete"] is True
    assert found["summary"]["runs"] == len(found["rows"])


def test_a_workload_that_fails_is_a_row(tmp_path):
    file = tmp_path / "figure.json"
    arguments = ["bench", "--figure", "16", "--workloads", "none such", "--json", str(file)]
    assert guarded(app, arguments) == 1
    (row,) = json.loads(file.read_text())["rows"]
    assert row["workload"] == "none such"
    assert row["error"]


def pressing(when):
    """Progress that presses Ctrl-C once, at the first note with some words in it."""
    notes = []

    def told(stage, done, note=""):
        if when in note and not any(when in before for before in notes):
            os.kill(os.getpid(), signal.SIGINT)
        notes.append(note)

    return told


@pytest.mark.parametrize(
    ("figure", "workload", "when", "rows"),
    [(14, "nasnet", "run 3 of", 2), (16, "bert", "memory 0.8, ", 2), (9, "bert", "chen within", 0)],
)
def test_an_interrupt_ends_the_search_that_runs_and_all_that_follow(figure, workload, when, rows):
    asked = figures.asked_of(figure, (workload,), "tiny", "sim:rtx3090", 600.0)
    text, good = figures.run(asked, pressing(when))
    found = json.loads(text)
    assert (found["complete"], good) == (False, False)
    assert len(found["rows"]) == rows


def asked_for(figure, *workloads):
    return figures.asked_of(figure, workloads, "tiny", "sim:rtx3090", 0.0)


def counting(made, fails_at):
    """A figure of three rows a workload, which is interrupted at one."""

    def make(name, asked):
        for number in range(3):
            if asked.has(workload=name, number=number):
                continue
            made.append((name, number))
            if len(made) == fails_at:
                os.kill(os.getpid(), signal.SIGINT)
            yield {"workload": name, "number": number}

    return make


@pytest.mark.parametrize(
    ("figure", "again"),
    [
        (13, [("b", 1), ("b", 2), ("c", 0), ("c", 1), ("c", 2)]),
        (11, [("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1), ("c", 2)]),
    ],
)
def test_a_figure_that_was_interrupted_goes_on(figure, again, monkeypatch):
    first, second, saved = [], [], []
    asked = asked_for(figure, "a", "b", "c")
    monkeypatch.setitem(figures.FIGURES, figure, ("x", counting(first, 5), ("a",)))
    text, _ = figures.run(asked, save=saved.append)
    assert len(saved) == len(first) == 5
    assert json.loads(text)["rows"][-1]["interrupted"] is True
    monkeypatch.setitem(figures.FIGURES, figure, ("x", counting(second, 0), ("a",)))
    known = figures.broken_off(asked, text)
    text, good = figures.run(replace(asked, known=known))
    assert second == again
    assert good
    rows = [(row["workload"], row["number"]) for row in json.loads(text)["rows"]]
    assert rows == [(name, number) for name in "abc" for number in range(3)]
    assert figures.broken_off(asked, text) == ()


def test_the_command_goes_on_with_its_file(tmp_path, monkeypatch):
    first, second = [], []
    command = ["bench", "--figure", "15", "--workloads", "a,b", "--out", str(tmp_path)]
    monkeypatch.setitem(figures.FIGURES, 15, ("x", counting(first, 3), ("a",)))
    assert guarded(app, command) == 130
    monkeypatch.setitem(figures.FIGURES, 15, ("x", counting(second, 0), ("a",)))
    assert guarded(app, command) == 0
    assert [*first[:2], *second] == [(name, number) for name in "ab" for number in range(3)]
    assert len(json.loads((tmp_path / "figure15.json").read_text())["rows"]) == 6


@pytest.mark.parametrize("text", ["", "[]", "{", '{"figure": 13}'])
def test_what_is_no_figure_has_no_rows_to_go_on_with(text):
    assert figures.broken_off(asked_for(13, "a"), text) == ()


def test_a_figure_of_other_settings_is_not_gone_on_with(monkeypatch):
    monkeypatch.setitem(figures.FIGURES, 13, ("x", counting([], 2), ("a",)))
    text, _ = figures.run(asked_for(13, "a"))
    assert figures.broken_off(asked_for(13, "a"), text)
    assert not figures.broken_off(asked_for(13, "b"), text)
    assert not figures.broken_off(asked_for(15, "a"), text)
    assert not figures.broken_off(replace(asked_for(13, "a"), time_budget=1.0), text)


@dataclass(frozen=True)
class Search:
    """A search that finds nothing at once."""

    roots: object = None
    workers: int = 0
    clock: object = field(default_factory=lambda: SimpleNamespace(seconds={}, counts={}, duplicates=0))

    def run(self):
        return SimpleNamespace(states=0)


@pytest.mark.parametrize("figure", sorted(figures.ROW_BY_ROW))
def test_rows_that_are_known_are_not_made_again(figure, monkeypatch):
    nothing = SimpleNamespace(
        search=lambda *_, **__: Search(), peers=lambda asked: (), graph=SimpleNamespace(nodes=())
    )
    for module in (bars, convergence):
        monkeypatch.setattr(module, "studied", lambda name, asked: nothing)
    monkeypatch.setattr(bars, "_ours", lambda *_, **__: {})
    monkeypatch.setattr(convergence, "_converging", lambda *_: [])
    make, asked = figures.FIGURES[figure][1], asked_for(figure, "bert")
    rows = list(make("bert", asked))
    assert len(rows) == {9: 2, 10: 2, 13: 20, 15: 4}[figure]
    for known in ([], rows[:1], rows):
        assert list(make("bert", replace(asked, known=tuple(known)))) == rows[len(known) :]
