"""What a candidate of the fission tree does to the bytes and seconds of a step, for any number of parts.

The states of its values are found once. A part's bytes are then straight lines in one over the number of
parts: what is split shrinks with it, what is whole or summed does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Region
from peakfold.ops.links import Factor
from peakfold.plan.fission.accumulate import PRODUCTS
from peakfold.plan.fission.axes import Axes
from peakfold.plan.fission.split import within
from peakfold.plan.fission.states import Assignment, Partial
from peakfold.plan.reorder.problem import Problem, problem_of
from peakfold.plan.schedule.arrays import Tables
from peakfold.plan.schedule.frame import Frame

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ground:
    """A prepared graph as items in order, with what footprints are made of.

    Attributes:
        graph: the program.
        tables: of it.
        problem: its base steps as items; an item's number is its place.
        steps: step of each item.
        item: number of each node that is one.
        seconds: of each item.
        overhead: seconds that one more run of a small operator costs.
        copy: bytes a second of adding to a sum in place.
    """

    graph: Graph
    tables: Tables
    problem: Problem
    steps: tuple[int, ...]
    item: Mapping[int, int]
    seconds: Floats
    overhead: float
    copy: float

    @staticmethod
    def of(frame: Frame, copy: float) -> "Ground":
        """Return the ground of a frame.

        Args:
            frame: of the prepared graph.
            copy: bytes that are copied a second on the device.
        """
        tables = frame.tables
        problem, steps = problem_of(frame)
        seconds = tables.seconds[list(steps)].astype(np.float64)
        own = seconds[seconds > 0]
        return Ground(
            graph=tables.graph,
            tables=tables,
            problem=problem,
            steps=steps,
            item={int(tables.nodes[step]): at for at, step in enumerate(steps)},
            seconds=seconds,
            overhead=float(own.min()) if len(own) else 0.0,
            copy=copy,
        )


@dataclass(frozen=True)
class Footprint:
    """A loop in numbers.

    Attributes:
        home: items of which the region has run 0.
        reads: values that it reads from outside.
        place: item in whose place it runs.
        shrinking, staying: bytes of a part that are live as each of its items runs, by kind: those that
        shrink with
            the number of parts, and those that do not.
        seconds: of all its runs, whole.
        more: seconds that each part beyond the first adds.
        states: of its values.
        inside: its items, runs above 0 included, in order.
    """

    home: Ints
    reads: Ints
    place: int
    shrinking: Floats
    staying: Floats
    seconds: float
    more: float
    states: Assignment
    inside: tuple[int, ...]

    def workspace(self, parts: int) -> float:
        """Return the most bytes that a part holds beyond operands and results."""
        return float((self.shrinking / parts + self.staying).max(initial=0.0))


def footprint(ground: Ground, region: Region, axes: Axes) -> Footprint:
    """Return the footprint of one loop, for any number of parts.

    Args:
        ground: of the prepared graph.
        region: of it.
        axes: knows the axes of the graph.

    Raises:
        PlanError: it cannot be done in parts.
    """
    graph, problem = ground.graph, ground.problem
    ids = frozenset(within(graph, region.runs))
    states = axes(graph, region, ids).states
    runs = sorted((ground.item[run.node], run.k) for run in region.runs if run.node in ground.item)
    inside = tuple(item for item, _ in runs)
    home = [item for item, k in runs if not k]
    made = {v for item in inside for v in problem.makes[item]}
    reads = sorted({v for item in inside for v in problem.reads[item]} - made)
    needs = max((problem.maker[v] for v in reads if v in problem.maker), default=0)
    shrinking, staying = _live(ground, inside, states)
    sums, moved = _borders(ground, home, reads, states)
    return Footprint(
        home=np.array(home, np.int64),
        reads=np.array(reads, np.int64),
        place=max(min(home, default=0), needs),
        shrinking=shrinking,
        staying=staying,
        seconds=float(ground.seconds[list(inside)].sum()) + 2 * moved / ground.copy,
        more=len(inside) * ground.overhead + 2 * sums / ground.copy,
        states=states,
        inside=inside,
    )


def _borders(ground: Ground, home: list[int], reads: list[int], states: Assignment) -> tuple[int, int]:
    """Bytes that each part adds to sums, and bytes that all parts copy into or out of their place."""
    problem, storages = ground.problem, ground.tables.storages
    mask = sum(1 << item for item in home)
    sums = moved = 0
    for v in (v for item in home for v in problem.makes[item]):
        if v in problem.kept or problem.readers[v] & ~mask:
            sums += problem.nbytes[v] if isinstance(states.get(storages[v]), Partial) else 0
            moved += problem.nbytes[v] if isinstance(states.get(storages[v]), Factor) else 0
    for v in reads:
        state = states.get(storages[v])
        moved += problem.nbytes[v] if isinstance(state, Factor) and (state.outer > 1 or state.dim) else 0
    return sums, moved


def inner_bytes(ground: Ground, outer: Footprint, inner: Footprint) -> tuple[Floats, Floats]:
    """Return which bytes of a part of one region shrink with the parts of one that is nested in it.

    Returns:
        Of ``shrinking`` and of ``staying`` of the outer one.
    """
    problem = ground.problem
    within_ = set(inner.inside)
    mask = sum(1 << item for item in inner.inside)
    storages = ground.tables.storages
    split = {
        v
        for item in within_
        for v in problem.makes[item]
        if isinstance(inner.states.get(storages[v]), Factor) and not problem.readers[v] & ~mask
    }
    return _live(ground, outer.inside, outer.states, split)


def _live(
    ground: Ground, inside: tuple[int, ...], states: Assignment, of: set[int] | None = None
) -> tuple[Floats, Floats]:
    """Bytes live as each item of a region runs, in its order: of values that are split, and of all others."""
    problem, storages, graph = ground.problem, ground.tables.storages, ground.graph
    last = {v: at for at, item in enumerate(inside) for v in problem.reads[item]}
    change = np.zeros((2, len(inside) + 1))
    for at, item in enumerate(inside):
        for v in problem.makes[item]:
            if of is not None and v not in of:
                continue
            state = states.get(storages[v])
            if isinstance(state, Partial) and _adds_itself(graph, storages[v]):
                continue
            kind = 0 if isinstance(state, Factor) else 1
            change[kind, at] += problem.nbytes[v]
            change[kind, last.get(v, at) + 1] -= problem.nbytes[v]
    live = change.cumsum(axis=1)[:, :-1]
    if of is None:
        live[0] += np.array([problem.workspace[item] for item in inside], np.float64)
    return live[0], live[1]


def _adds_itself(graph: Graph, value: Value) -> bool:
    """Whether what makes a sum can add to it without a buffer of its own."""
    return graph.node[value.node].op.name in PRODUCTS
