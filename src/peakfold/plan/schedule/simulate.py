"""What a schedule holds and takes, simulated.

The bytes are those that the allocator hands out when the emitted program runs: an output is taken
while the operands still live, workspace is taken and given back inside its step.
"""

from dataclasses import dataclass

import numpy as np

from peakfold.cost.costs import Costs, Link
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Schedule
from peakfold.plan.schedule import kernel
from peakfold.plan.schedule.arrays import Bytes, Floats, Tables, tabulate
from peakfold.plan.schedule.tape import Tape, record
from peakfold.plan.schedule.timeline import Timeline


@dataclass(frozen=True)
class Result:
    """What the kernel found for one tape; the columns are described at `Timeline`."""

    live: Bytes
    during: Bytes
    begin: Floats
    end: Floats
    peak: int
    peak_row: int
    seconds: float
    compute_seconds: float
    out_seconds: float
    in_seconds: float
    host_peak: int


def simulate(graph: Graph, costs: Costs, schedule: Schedule) -> Timeline:
    """Simulate a schedule of a graph.

    Raises:
        PlanError: the schedule frees, moves or overwrites what has no bytes at that place.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output, Node, Value
        >>> from peakfold.ir.plan import Compute, Run
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(4))
        >>> relu = Node(1, "relu", Op("aten.relu.default"), (Value(0),), (), (tensor(4),), (None,))
        >>> graph = Graph((x,), (relu,), (Output("y", Value(1)),))
        >>> timeline = simulate(graph, Costs({1: 2.0}, {1: 8}), Schedule((Compute(Run(1)),)))
        >>> timeline.live, timeline.peak, timeline.seconds
        ((32,), 40, 2.0)
    """
    return simulate_tables(tabulate(graph, costs), schedule, costs.link)


def simulate_tables(tables: Tables, schedule: Schedule, link: Link) -> Timeline:
    """Simulate a schedule of a graph whose arrays exist."""
    tape = record(tables, schedule)
    result = run(tables, tape, link)
    return Timeline(
        steps=tape.steps,
        live=tuple(result.live.tolist()),
        during=tuple(result.during.tolist()),
        workspace=tuple(np.where(tape.kind == kernel.COMPUTE, _hidden(tables, tape), 0).tolist()),
        begin=tuple(result.begin.tolist()),
        end=tuple(result.end.tolist()),
        spans=tape.spans,
        resident=tables.resident,
        peak=result.peak,
        seconds=result.seconds,
        compute_seconds=result.compute_seconds,
        out_seconds=result.out_seconds,
        in_seconds=result.in_seconds,
        host_peak=result.host_peak,
    )


def run(tables: Tables, tape: Tape, link: Link) -> Result:
    """Run the kernel on a tape."""
    rows = len(tape.kind)
    live, during = np.empty(rows, np.int64), np.empty(rows, np.int64)
    begin, end = np.empty(rows), np.empty(rows)
    totals = kernel.run(
        tape.kind,
        tape.index,
        tape.amount,
        tables.seconds,
        tables.workspace,
        tables.nbytes,
        tables.resident,
        link.bandwidth,
        link.latency,
        link.copy,
        live,
        during,
        begin,
        end,
    )
    return Result(live, during, begin, end, *totals)


def _hidden(tables: Tables, tape: Tape) -> Bytes:
    if not tables.steps:
        return np.zeros(len(tape.index), np.int64)
    return tables.workspace[np.minimum(tape.index, tables.steps - 1)]
