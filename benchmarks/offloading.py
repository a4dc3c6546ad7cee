"""Copies beside the computation: how much of their time is hidden, and what they save."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.case import THREADS, Row, load
from peakfold.bridge.capture.batches import arguments
from peakfold.bridge.runtime.link_speed import link_speed
from peakfold.bridge.runtime.measure import interleaved_cpu_seconds
from peakfold.bridge.runtime.offload import Copy
from peakfold.bridge.runtime.step import Step
from peakfold.cost import roofline
from peakfold.cost.cache import CostCache
from peakfold.errors import InfeasibleError
from peakfold.ir.plan import Plan
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.prove import make_step, planned_call
from peakfold.pipeline.task import Task
from peakfold.plan.schedule import offload_search, planner
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.found import Found
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.offloading import Offloader
from peakfold.plan.schedule.simulate import simulate
from peakfold.workloads import load_target

REPEATS = 7


def hidden(workload: str, size: str = "cpu", folder: str = "", share: float = 0.5) -> list[Row]:
    """Return how much of the time of copies is hidden on this machine, in wall seconds on all cores.

    Everything that can be hidden is offloaded until the peak is at a share of what it was. The time of the
    copies is that of the threads that copy, and what is not hidden is what the program waits for them.

    Args:
        workload: its name.
        size: of it.
        folder: where values wait in a file; memory of the host where it is empty.
        share: of the peak without offloads.
    """
    case = load(workload, size)
    graph, place = case.captured.graph, Path(folder) if folder else None
    link = link_speed(CostCache(None), "cpu", place, case.costs.link)
    tables = tabulate(graph, case.costs)
    offloader = Offloader(tables, Plan(graph.digest), link)
    plan = offloader.fit(int(share * offloader.timeline.peak), waiting=False)
    assert plan is not None
    away = emit_plan(case.captured, plan, case.costs, folder=place)
    step = make_step(case.task.clone(), away)
    clock = _watched(step)
    args, kwargs = arguments(case.task.batch)
    variants: Mapping[str, Callable[[], object]] = {
        "plain": planned_call(case.task.clone(), case.plain),
        "offloaded": lambda: step(*args, **kwargs),
    }
    found = interleaved_cpu_seconds(variants, REPEATS, warmup=2, threads=THREADS, wall=True)
    copies, waits = clock["copy"], clock["wait"]
    return [
        {
            "workload": workload,
            "where": folder or "memory",
            "copies": len(plan.offload),
            "host_bytes": away.host_bytes,
            "bandwidth": link.bandwidth,
            "transfer_seconds": copies / (REPEATS + 2),
            "waited_seconds": waits / (REPEATS + 2),
            "hidden": 1 - waits / copies if copies else 1.0,
            "plain_wall_seconds": found["plain"],
            "offloaded_wall_seconds": found["offloaded"],
            "predicted_peak_ratio": away.timeline.peak / case.plain.timeline.peak,
        }
    ]


def _watched(step: Step) -> dict[str, float]:
    """Add up the wall seconds that a step's threads copy, and that its program waits for them."""
    spent = {"copy": 0.0, "wait": 0.0}
    carrier = step._programs[0]._function.__globals__["host"].carrier

    def timed(function: Callable[..., object], what: str) -> Callable[..., object]:
        def call(*args: object) -> object:
            begin = time.perf_counter()
            try:
                return function(*args)
            finally:
                spent[what] += time.perf_counter() - begin

        return call

    def started(start: Callable[..., Copy]) -> Callable[..., Copy]:
        def call(*args: object) -> Copy:
            copy = start(*args)
            copy.result = timed(copy.result, "wait")  # type: ignore[method-assign]
            return copy

        return call

    carrier._write, carrier._read = timed(carrier._write, "copy"), timed(carrier._read, "copy")
    carrier.out, carrier.back = started(carrier.out), started(carrier.back)
    return spent


def beside(
    workload: str, budgets: str, size: str = "paper", device: str = "rtx3090", time_budget: float = 30.0
) -> list[Row]:
    """Return predicted time ratios of recomputation alone, and with offloads, for shares of the peak.

    Args:
        workload: its name.
        budgets: shares of the peak without decisions, with commas between.
        size: of it; nothing is allocated or run.
        device: described device.
        time_budget: wall seconds of each search.
    """
    graph = Task.of(load_target(workload, seed=0, size=size, device="meta")).capture().graph
    costs = roofline.estimate(graph, device)
    plain = Offloader(tabulate(graph, costs), Plan(graph.digest), costs.link).timeline
    rows: list[Row] = []
    for share in map(float, budgets.split(",")):
        memory = int(share * plain.peak)

        def search(one: Callable[..., Found], memory: int = memory) -> Found | None:
            try:
                return one(graph, costs, memory=memory, time_budget=time_budget)
            except InfeasibleError:
                return None

        alone, both = search(planner.optimize), search(offload_search.optimize)
        row: Row = {"workload": workload, "memory_ratio": share, "peak_bytes": plain.peak}
        row["recompute_latency_ratio"] = None if alone is None else alone.seconds / plain.seconds
        if both is not None:
            schedule = lower(graph, both.plan)
            timeline = simulate(graph, costs, schedule)
            copies = timeline.out_seconds + timeline.in_seconds
            waits = timeline.seconds - timeline.compute_seconds
            row |= {
                "offload_latency_ratio": both.seconds / plain.seconds,
                "host_bytes": timeline.host_peak,
                "transfer_seconds": copies,
                "hidden": 1 - waits / copies if copies else 1.0,
            }
        rows.append(row)
    return rows
