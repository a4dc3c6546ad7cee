"""The figures of the paper: what is asked for, the random networks, and their JSON."""

import json
import os
import signal
from random import Random

import pytest

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
