"""Capture at paper size without weights, and how long planning takes."""

import time
from dataclasses import asdict

from benchmarks.case import Row
from peakfold.ops.known import barriers
from peakfold.pipeline.api import optimize_target
from peakfold.pipeline.request import request
from peakfold.pipeline.task import Task
from peakfold.workloads import build


def capture(workload: str, size: str = "paper") -> list[Row]:
    """Return CPU seconds, nodes and operators without a table entry; every tensor is on the meta device."""
    task = Task.of(build(workload, size, device="meta"))
    start = time.process_time()
    graph = task.capture().graph
    seconds = time.process_time() - start
    parameters = list(task.model.parameters())
    row: Row = {
        "workload": workload,
        "size": size,
        "cpu_seconds": seconds,
        "nodes": len(graph.nodes),
        "storages": sum(1 for _ in graph.storages()),
        "unsupported": list(barriers(graph)),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "materialised": sum(parameter.device.type != "meta" for parameter in parameters),
    }
    return [row]


def planning(workload: str, size: str, memory: str, time_budget: float) -> list[Row]:
    """Return the wall seconds of each stage up to the emitted program, nothing cached.

    The paper's size is planned for a simulated RTX 3090, others for this machine. The run of eager that
    a share of its peak asks for is left out.
    """
    device = "sim:rtx3090" if size == "paper" else "cpu"
    target = build(workload, size, device="meta" if size == "paper" else "cpu")
    asked = request(memory, None, time_budget, None, 0, "eager", False, device, name=workload)
    start = time.perf_counter()
    report = optimize_target(target, asked).report
    seconds = time.perf_counter() - start - (report.seconds.verify or 0.0)
    row: Row = {
        "workload": workload,
        "size": size,
        "memory": memory,
        "seconds": seconds,
        "stages": asdict(report.seconds),
        "stop_reason": report.search.stop_reason,
        "states": report.search.states,
    }
    return [row]
