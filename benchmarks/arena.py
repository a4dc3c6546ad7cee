"""Figures of arenas: of a workload's own lifetimes, of many steps in a row, and of steps that run in one."""

from dataclasses import replace

from benchmarks.case import Row, load
from peakfold.bridge.capture.batches import arguments
from peakfold.bridge.runtime.measure import interleaved_cpu_seconds
from peakfold.pipeline import prove
from peakfold.pipeline.arena import allocations, best_layout
from peakfold.pipeline.program import Program
from peakfold.pipeline.task import Task
from peakfold.plan.memory.check import check_placement
from peakfold.plan.memory.layout import Layout, lay_out, placed
from peakfold.plan.memory.pools import compare
from peakfold.plan.memory.trace import Request, Trace

REPEATS = 7
MANY = 20_000
MANY_SECONDS = 10.0


def arena(workload: str, size: str, timed: bool = True) -> list[Row]:
    """Return the arena of a workload's step: bytes, gap to the bound, seconds of planning and of running."""
    case = load(workload, size)
    layout = best_layout(allocations(case.task, case.plain))
    row = _row(workload, size, layout)
    row |= {found.model: found.reserved for found in compare(layout.trace)}
    if timed:
        row |= _times(case.task, case.plain, layout)
    many = lay_out(tiled(layout.trace, MANY), time_budget=MANY_SECONDS)
    return [row, _row(f"{workload} x{-(-MANY // len(layout.trace.requests))}", size, many)]


def tiled(trace: Trace, count: int) -> Trace:
    """Return a trace of at least so many requests: a program's own, step after step, the results kept."""
    requests: list[Request] = []
    step = 0
    while len(requests) < count:
        begin = step * trace.length
        for request in trace.requests:
            dies = None if request.dies is None else request.dies + begin
            requests.append(replace(request, born=request.born + begin, dies=dies))
        step += 1
    return Trace(tuple(requests), trace.steps, step * trace.length)


def _row(name: str, size: str, layout: Layout) -> Row:
    solution = placed(layout)
    if solution is not None:
        check_placement(solution, layout.passing)
    return {
        "workload": name,
        "size": size,
        "buffers": len(layout.trace.requests),
        "arena_bytes": layout.arena,
        "lower_bound_bytes": layout.lower_bound,
        "gap": layout.gap,
        "status": layout.status,
        "plan_seconds": round(layout.seconds, 4),
    }


def _times(task: Task, program: Program, layout: Layout) -> Row:
    """CPU seconds of the same program with torch's allocator and in its arena, interleaved."""
    inside = replace(program, layout=layout, in_arena=True)
    steps = {
        "allocator": prove.make_step(task.clone(), program),
        "arena": prove.make_step(task.clone(), inside),
    }
    args, kwargs = arguments(task.batch)
    calls = {name: (lambda step=step: step(*args, **kwargs)) for name, step in steps.items()}
    seconds = interleaved_cpu_seconds(calls, REPEATS)
    arena_ = steps["arena"].arena
    assert arena_ is not None
    use = arena_.use
    return {
        "allocator_seconds": seconds["allocator"],
        "arena_seconds": seconds["arena"],
        "ratio": seconds["arena"] / seconds["allocator"],
        "served": use.served,
        "ordinary": use.ordinary,
        "high_water_bytes": use.high_water,
    }
