"""Packing as a move: every value that can be packed over the peak of a plan is."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from peakfold.cost.costs import Link
from peakfold.ir.plan import CompressGap, Compute, Plan
from peakfold.ops.packing import packing
from peakfold.plan.schedule.arrays import Tables
from peakfold.plan.schedule.lower import lower_tables
from peakfold.plan.schedule.simulate import simulate_tables
from peakfold.plan.schedule.timeline import Timeline
from peakfold.plan.schedule.transfers import Movable, Places

SMALLEST = 1 << 14
"""Bytes that packing must save at least."""


def can_pack(tables: Tables) -> bool:
    """Whether any value of a graph is worth packing."""
    graph = tables.graph
    return any(_saves(tables, i) >= SMALLEST for i in range(len(graph.inputs), len(tables.storages)))


def with_packed(tables: Tables, plan: Plan, link: Link) -> Plan:
    """Return a plan that also packs what lies idle over its peak."""
    timeline = simulate_tables(tables, lower_tables(tables, replace(plan, compress=())), link)
    return replace(plan, compress=tuple(sorted(_gaps(tables, plan, timeline))))


def _gaps(tables: Tables, plan: Plan, timeline: Timeline) -> Iterator[CompressGap]:
    schedule = lower_tables(tables, replace(plan, compress=(), offload=()))
    places, movable = Places(tables.graph, schedule), Movable(tables.graph)
    peak = timeline.hotspots[0] if timeline.hotspots else -1
    for index, value in enumerate(tables.storages):
        if _saves(tables, index) < SMALLEST or movable.why_not(value) is not None:
            continue
        touches = places.touches.get(value, ())
        for row, read in pairwise(touches):
            ends = (schedule.steps[row], schedule.steps[read])
            first = all(isinstance(step, Compute) and step.run.k == 0 for step in ends)
            if first and row < peak < read and not places.makes(read, value):
                after, use = (step.run.node for step in ends if isinstance(step, Compute))
                yield CompressGap(value, after, use)


def _saves(tables: Tables, index: int) -> int:
    found = packing(tables.graph, tables.storages[index])
    return 0 if found is None else int(tables.nbytes[index]) - found.nbytes
