"""Figures of the planner on problems in files, and on variants of them: seconds until each fits."""

import random
import time
from pathlib import Path

from benchmarks.case import Row
from benchmarks.variants import KINDS, Layout, layout_of, variant
from peakfold.plan.memory import Problem, check_placement, plan, read_problem

SECONDS = 240.0
CAPACITY = 1_048_576
GLUE = "glue"


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


def varied(folder: Path, rounds: int, limit: float, seed: int) -> list[Row]:
    """Return a row for each variant without slack of each problem of a folder: of every kind, so many.

    Args:
        folder: of CSV files.
        rounds: variants of a kind.
        limit: seconds for each.
        seed: of the variants.
    """
    rng, rows = random.Random(seed), list[Row]()
    names = [path.name.split(".")[0] for path in sorted(folder.glob("*.csv"))]
    problems = [read_problem(path) for path in sorted(folder.glob("*.csv"))]
    for number in range(rounds):
        bases = [_solution(problem, number) for problem in problems]
        for i, (base, capacity) in enumerate(bases):
            other, capacity_of_other = bases[(i + 1 + number) % len(bases)]
            for kind in (*KINDS, GLUE):
                room = max(capacity, capacity_of_other) if kind == GLUE else capacity
                problem, room = variant(kind, [base, other], room, rng, seal=True)
                taken = _seconds(problem, room, 0, limit)
                row: Row = {"problem": names[i], "kind": kind, "number": number}
                row |= {"buffers": len(problem.buffers), "capacity": room}
                rows.append(row | {"fits": taken is not None, "cpu_seconds": taken})
    return rows


def _solution(problem: Problem, seed: int) -> tuple[Layout, int]:
    """A solution, and the bytes that it keeps to: the bound where that is met within a second."""
    soon = plan(problem, time_budget=1.0)
    capacity = soon.lower_bound if soon.arena == soon.lower_bound else CAPACITY
    placement = plan(problem, capacity, SECONDS, seed)
    check_placement(problem.placed(placement.offsets), capacity)
    return layout_of(problem, placement.offsets), capacity


def _seconds(problem: Problem, capacity: int, seed: int, limit: float = SECONDS) -> float | None:
    """CPU seconds until the problem fits; None where it did not."""
    start = time.process_time()
    placement = plan(problem, capacity, limit, seed)
    taken = time.process_time() - start
    if not placement.fits:
        return None
    check_placement(problem.placed(placement.offsets), capacity)
    return taken
