"""Many budgets of one workload: every program run, its bytes against the simulated ones."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch.utils import _pytree as pytree

from benchmarks.case import Case, Row, load
from peakfold.bridge.capture.batches import arguments
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.runtime.bind import Binder
from peakfold.bridge.runtime.compiled import compiled
from peakfold.bridge.runtime.measure import live_curve, mark, peak_bytes
from peakfold.bridge.runtime.source import load_source
from peakfold.budget import even_ratios
from peakfold.pipeline.program import Program
from peakfold.pipeline.prove import eager_call, planned_call
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.bound import peak_bound
from peakfold.plan.schedule.planner import Point, optimize_front

CURVES = 3
"""So many programs, evenly over the budgets, are compared with the simulator at every step."""


@dataclass(frozen=True)
class _Known:
    """What all rows of a workload have."""

    workload: str
    eager_peak_bytes: int
    lower_bound_bytes: int
    search_seconds: float
    plain_seconds: float


def budgets(workload: str, size: str, count: int, time_budget: float) -> list[Row]:
    """Return a row for each budget, from eager's measured peak to the proven lower bound, in even ratios.

    Args:
        workload: its name.
        size: of it.
        count: how many budgets.
        time_budget: wall seconds of the one search for all.
    """
    case = load(workload, size)
    eager = eager_call(case.task)
    peak = peak_bytes(eager, resident=case.task.resident).peak_bytes
    bound = peak_bound(tabulate(case.captured.graph, case.costs))
    asked = even_ratios(peak, bound, count)
    start = time.perf_counter()
    front = optimize_front(case.captured.graph, case.costs, budgets=asked, time_budget=time_budget)
    taken = time.perf_counter() - start
    known = _Known(workload, peak, bound, taken, case.plain.timeline.seconds)
    return list(_rows(case, known, asked, front.points))


def _rows(case: Case, known: _Known, asked: Sequence[int], points: Sequence[Point | None]) -> Iterator[Row]:
    met = [i for i, point in enumerate(points) if point is not None]
    curves = {met[int(i)] for i in np.linspace(0, len(met) - 1, CURVES)} if met else set()
    done: dict[Point, Row] = {}
    for i, (budget, point) in enumerate(zip(asked, points, strict=True)):
        head = _head(known, budget)
        if point is None:
            yield {**head, "refused": True}
            continue
        if point not in done or i in curves:
            done[point] = _measured(case, known, case.program(point.plan), i in curves)
        yield {**head, "refused": False, **done[point], "within": _is_within(done[point], budget)}


def _head(known: _Known, budget: int) -> Row:
    return {
        "workload": known.workload,
        "budget_bytes": budget,
        "eager_peak_bytes": known.eager_peak_bytes,
        "lower_bound_bytes": known.lower_bound_bytes,
        "search_seconds": known.search_seconds,
    }


def _is_within(measured: Row, budget: int) -> bool:
    peak = measured["peak_bytes"]
    assert isinstance(peak, int)
    return peak <= budget


def _measured(case: Case, known: _Known, program: Program, curve: bool) -> Row:
    call = planned_call(case.task, program)
    constants = case.captured.binding.constants
    measured = peak_bytes(call, warmup=0, resident=lambda: case.task.resident(constants))
    row: Row = {
        "predicted_peak_bytes": program.timeline.peak,
        "peak_bytes": measured.peak_bytes,
        "predicted_latency_ratio": program.timeline.seconds / known.plain_seconds,
    }
    return {**row, **_curve(case, program)} if curve else row


def _curve(case: Case, program: Program) -> Row:
    """Return at how many steps of a program the measured live bytes are the simulated ones."""
    task = case.task
    graph = case.captured.graph
    function = load_source(emit(graph, program.schedule, program.timeline, marks=True))
    bound = compiled(case.captured, program.plan, "", task.model, task.optimizer, task.batch)
    tensors, scalars = Binder(bound, task.subject).fetch(pytree.tree_leaves(arguments(task.batch)))
    step = lambda: function(tensors, scalars, mark)  # type: ignore[call-arg]  # noqa: E731
    found, expected = live_curve(step, task.resident(case.captured.binding.constants)), program.timeline.live
    equal = sum(a == b for a, b in zip(found, expected, strict=False))
    return {"steps": len(expected), "marks": len(found), "equal_steps": equal}
