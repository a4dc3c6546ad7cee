"""Every bit, over several steps, with dropout and optimizers that have state."""

from benchmarks.case import Row
from peakfold.bridge.runtime.target import Target
from peakfold.bridge.runtime.verify import verify
from peakfold.cost import roofline
from peakfold.ir.plan import Plan
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.prove import make_step
from peakfold.pipeline.task import Task
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.planner import optimize
from peakfold.plan.schedule.simulate import simulate
from peakfold.workloads import build

NO_DROPOUT = ("resnet50",)
DROPOUT = 0.1
RULER = "rtx3090"
SLOWER = 1.3
"""The plan is the smallest within this time, so that much is computed again."""


def equality(workload: str, size: str, optimizer: str, steps: int, time_budget: float) -> list[Row]:
    """Return whether an optimized step leaves every bit as eager does.

    Args:
        workload: its name.
        size: of it.
        optimizer: its optimizer.
        steps: how many are run.
        time_budget: wall seconds of the search.
    """
    dropout = 0.0 if workload in NO_DROPOUT else DROPOUT
    task = Task.of(build(workload, size, optimizer=optimizer, dropout=dropout))
    captured = task.capture()
    graph, costs = captured.graph, roofline.estimate(captured.graph, RULER)
    plain = simulate(graph, costs, lower(graph, Plan(graph.digest)))
    found = optimize(graph, costs, latency=SLOWER * plain.seconds, time_budget=time_budget)
    program = emit_plan(captured, found.plan, costs)
    result = verify(
        Target(task.model, task.loss_fn, task.optimizer, task.batch),
        lambda copy: make_step(Task(copy.model, copy.loss_fn, copy.optimizer, copy.batch), program),
        steps=steps,
    )
    row: Row = {
        "workload": workload,
        "size": size,
        "optimizer": optimizer,
        "dropout": dropout,
        "steps": steps,
        "recomputed": len(found.plan.recompute),
        "memory_of_plain": found.peak_bytes / plain.peak,
        "bit_equal": result.bit_equal,
        "max_error": result.max_error,
        "worst": result.worst,
    }
    return [row]
