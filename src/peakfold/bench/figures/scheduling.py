"""Figure 14: incremental against full scheduling on random training steps of NASNet's kind."""

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from peakfold.bench.figures.studied import Asked, Row
from peakfold.bench.nasnet import changed, network
from peakfold.plan.reorder.downsets import Solution, plain
from peakfold.plan.reorder.incremental import reschedule, whole
from peakfold.plan.reorder.problem import Problem

NETWORKS = 10
RUNS = 100
CELLS = 4
LIMIT = 200_000
"""Downsets at which the full recursion gives up; its time is then a lower bound."""


def runs(asked: Asked) -> Iterator[Row]:
    """Yield a row for each random rewrite of each network, until time is spent.

    Each is ordered three ways: around what changed; whole, by the recursion alone, which is the paper's full
    scheduling; and whole, best first with bounds. Times are CPU seconds of this process.
    """
    began = time.monotonic()
    made: dict[int, tuple[Problem, tuple[int, ...]]] = {}
    for run in range(RUNS):
        if time.monotonic() - began > asked.time_budget:
            return
        asked.said(f"run {run + 1} of {RUNS}")
        index = run % NETWORKS
        if index not in made:
            problem = network(asked.seed * NETWORKS + index, CELLS)
            made[index] = (problem, whole(problem, range(problem.size)).order)
        problem, order = made[index]
        after = changed(problem, order, Random(f"{asked.seed}/{run}"))
        near, near_seconds = _timed(partial(reschedule, after.problem, after.order, after.items))
        full, full_seconds = _timed(partial(whole, after.problem, after.order, LIMIT, plain))
        best, best_seconds = _timed(partial(whole, after.problem, after.order))
        yield {
            "network": index,
            "items": after.problem.size,
            "full_seconds": full_seconds,
            "best_first_seconds": best_seconds,
            "incremental_seconds": near_seconds,
            "ratio": full_seconds / near_seconds,
            "full_is_exact": full.exact,
            "best_first_is_exact": best.exact,
            "full_peak": min(full.peak, best.peak),
            "incremental_peak": near.peak,
            "equal": near.peak <= min(full.peak, best.peak),
        }


def summary(rows: list[Row]) -> Row:
    """Return the geometric mean of the ratios, and how often both are equal.

    So many runs as ``at_least`` says gave the full recursion up: their ratio is at least what is said.
    """
    ratios = [float(str(row["ratio"])) for row in rows]
    return {
        "runs": len(rows),
        "at_least": sum(not row["full_is_exact"] for row in rows),
        "geomean_ratio": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        "least_ratio": min(ratios, default=None),
        "most_ratio": max(ratios, default=None),
        "equal": sum(bool(row["equal"]) for row in rows),
        "exact": sum(bool(row["full_is_exact"] or row["best_first_is_exact"]) for row in rows),
    }


def _timed(work: Callable[[], Solution]) -> tuple[Solution, float]:
    began = time.process_time()
    found = work()
    return found, max(time.process_time() - began, 1e-9)
