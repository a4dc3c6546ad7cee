"""Full simulations a second of a training step of 2,000 nodes.

The tape has workspace, second runs, a loop and both transfer queues::

    python benchmarks/simulations.py
"""

import time
from collections.abc import Callable

import numpy as np

from peakfold.cost.costs import Costs, Link
from peakfold.ir.graph import Graph, Input, Node, Op, Origin, Output, Value
from peakfold.ir.plan import (
    Arrive,
    Buffer,
    Compute,
    Free,
    Loop,
    Offload,
    Prefetch,
    Release,
    Run,
    Schedule,
    Step,
)
from peakfold.ir.types import tensor
from peakfold.plan.schedule import simulate
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.tape import record

HALF, LOOPED = 1000, 200


def step_of_two_halves() -> Graph:
    """Return a forward of 1,000 nodes and a backward of 1,000 that reads it in reverse."""
    kind = tensor(64, 64)
    given = Input(0, "x", "batch", kind)
    nodes = []
    for i in range(1, 2 * HALF + 1):
        reads = (Value(i - 1),) if i <= HALF else (Value(i - 1), Value(2 * HALF + 1 - i))
        origin = Origin(phase="forward" if i <= HALF else "backward")
        nodes.append(Node(i, f"n{i}", Op("aten.mul.Tensor"), reads, (), (kind,), (None,), origin=origin))
    return Graph((given,), tuple(nodes), (Output("y", Value(2 * HALF)),))


def busy_schedule() -> Schedule:
    """Return a schedule in which every fifth value is recomputed and every tenth is offloaded."""
    steps: list[Step] = []
    for i in range(1, HALF + 1):
        steps.append(Compute(Run(i)))
        if i > 1 and (i - 1) % 5 == 0:
            steps.append(Free(Buffer(Value(i - 1))))
        if i > LOOPED and (i - 1) % 10 == 3:
            steps += [Offload(Buffer(Value(i - 1))), Release(Buffer(Value(i - 1)))]
    for i in range(HALF + 1, 2 * HALF + 1):
        read = 2 * HALF + 1 - i
        if read % 5 == 0 and read < HALF:
            steps.append(Compute(Run(read, 1)))
        if (read - 2) % 10 == 3 and LOOPED <= read - 2 < HALF:
            steps += [Prefetch(Buffer(Value(read - 2))), Arrive(Buffer(Value(read - 2)))]
        steps.append(Compute(Run(i)))
        steps.append(Free(Buffer(Value(read), int(read % 5 == 0 and read < HALF))))
        if i > HALF + 1:
            steps.append(Free(Buffer(Value(i - 1))))
    return Schedule((*steps[:50], Loop("part", 4, tuple(steps[50:LOOPED])), *steps[LOOPED:]))


def rate() -> dict[str, object]:
    """Return nodes, rows and simulations a second, from the least CPU time of many runs on one thread."""
    graph = step_of_two_halves()
    random = np.random.default_rng(0)
    seconds, hidden = random.random(2 * HALF + 1) * 1e-3, random.integers(0, 1 << 16, 2 * HALF + 1)
    costs = Costs(dict(enumerate(seconds.tolist())), dict(enumerate(hidden.tolist())))
    tables = tabulate(graph, costs)
    tape = record(tables, busy_schedule())
    link = Link(bandwidth=1e9)
    peak = simulate.run(tables, tape, link).peak
    best = min(_seconds(100, lambda: simulate.run(tables, tape, link)) for _ in range(20))
    return {"nodes": tables.steps, "rows": len(tape.kind), "peak_bytes": peak, "per_second": 1 / best}


def main() -> None:
    """Print the rate."""
    found = rate()
    print(*(f"{name} {value:,.0f}" for name, value in found.items()), sep=", ")


def _seconds(repeats: int, work: Callable[[], object]) -> float:
    start = time.thread_time()
    for _ in range(repeats):
        work()
    return (time.thread_time() - start) / repeats


if __name__ == "__main__":
    main()
