"""Figures of the planner on problems in files: seconds until each fits, and the gap after one second."""

import time
from pathlib import Path

from benchmarks.case import Row
from peakfold.plan.memory import Problem, check_placement, plan, read_problem

SECONDS = 240.0
CAPACITY = 1_048_576


def packing(folder: Path, seeds: int) -> list[Row]:
    """Return a row for each CSV file of a folder, whose name may say its capacity: ``A.1048576.csv``."""
    return [_row(path, seeds) for path in sorted(folder.glob("*.csv"))]


def _row(path: Path, seeds: int) -> Row:
    problem, (name, *rest) = read_problem(path), path.name.split(".")
    capacity = int(rest[0]) if rest[0].isdecimal() else CAPACITY
    soon = plan(problem, time_budget=1.0)
    taken = [_seconds(problem, capacity, seed) for seed in range(seeds)]
    return {
        "problem": name,
        "buffers": len(problem.buffers),
        "capacity": capacity,
        "lower_bound": soon.lower_bound,
        "fits": sum(seconds is not None for seconds in taken),
        "seeds": seeds,
        "cpu_seconds": [seconds for seconds in taken if seconds is not None],
        "gap_after_1_s": soon.gap,
    }


def _seconds(problem: Problem, capacity: int, seed: int) -> float | None:
    """CPU seconds until the problem fits; None where it did not."""
    start = time.process_time()
    placement = plan(problem, capacity, SECONDS, seed)
    taken = time.process_time() - start
    if not placement.fits:
        return None
    check_placement(problem.placed(placement.offsets), capacity)
    return taken
