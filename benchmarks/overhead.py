"""The emitted program with nothing optimized, and without recomputation, against eager."""

from benchmarks.case import THREADS, Row, case_of, load
from peakfold.bridge.runtime.measure import interleaved_cpu_seconds
from peakfold.pipeline.prove import eager_call, planned_call
from peakfold.pipeline.task import Task
from peakfold.workloads import build

SMALL = "small"
"""A BERT step of about 30 ms."""
REPEATS, SMALL_REPEATS = 5, 50


def overhead(workload: str, size: str = "cpu") -> list[Row]:
    """Return CPU seconds of eager, of the untouched program and of the one without recomputation.

    Args:
        workload: its name, or `SMALL`.
        size: of it.
    """
    small = workload == SMALL
    case = case_of(Task.of(build("bert", "tiny", batch=384))) if small else load(workload, size)
    variants = {
        "eager": eager_call(case.task.clone()),
        "untouched": planned_call(case.task.clone(), case.untouched),
        "plain": planned_call(case.task.clone(), case.plain),
    }
    repeats = SMALL_REPEATS if small else REPEATS
    found = interleaved_cpu_seconds(variants, repeats, warmup=2, threads=THREADS)
    row: Row = {
        "workload": workload,
        "nodes": len(case.captured.graph.nodes),
        "eager_cpu_seconds": found["eager"],
        "untouched_ratio": found["untouched"] / found["eager"],
        "plain_ratio": found["plain"] / found["eager"],
    }
    return [row]
