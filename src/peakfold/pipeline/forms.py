"""The graph that a front is searched of: as captured, or after rewrites whose own front is lower."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

from peakfold.bridge.capture import Captured
from peakfold.bridge.runtime.retype import retyped
from peakfold.graph.wl import hashed
from peakfold.ir.graph import Graph
from peakfold.pipeline.moves import Moves
from peakfold.pipeline.quicker import Quickened
from peakfold.pipeline.request import Request
from peakfold.pipeline.task import Task
from peakfold.plan.schedule.found import Point
from peakfold.plan.search.rewrites import FAMILIES, INTERIM, Family, State, neighbours

MOST = 8
"""Graphs of which a front without regions is searched, to choose one."""
SHARE = 0.25
"""Of the time budget, for choosing."""
Fronts = Callable[[Graph, Request], Sequence[Point]]
"""Searches a front of a graph without regions."""


@dataclass(frozen=True)
class Form:
    """A graph that computes what was captured.

    Attributes:
        state: the graph, and the families of moves that made it.
        simplified: whether the passes that keep every bit came first.
        points: a front of it without regions.
    """

    state: State
    simplified: bool = False
    points: tuple[Point, ...] = ()

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.state.graph

    @property
    def words(self) -> str:
        """What was done, for a note; nothing for the captured graph."""
        done = [f"{name} at {count} place{'s' * (count > 1)}" for name, count in self.state.families]
        return ", ".join((["passes that keep every bit"] if self.simplified else []) + done)

    def bound(self, captured: Captured) -> Captured:
        """Return the captured program with this graph."""
        return replace(captured, graph=self.graph)

    def of(self, task: Task) -> Task:
        """Return a task that is captured in this form."""
        if not self.words:
            return task
        names = tuple(name for name, _ in self.state.families)
        before = Quickened() if self.simplified else None
        rounds = task.rounds or not self.state.keeps_bits
        return replace(task, rewriter=Moves(names, before), rounds=rounds)


def forms(
    graph: Graph,
    search: Fronts,
    asked: Request,
    times: Sequence[float],
) -> tuple[Form, ...]:
    """Return graphs whose fronts were searched, the lowest first; the captured one wins ties.

    A family of moves more is tried on the lowest first. Fronts are compared by the mean of the logarithms of
    the least bytes at each of some times.

    Args:
        graph: as captured.
        search: of a front without regions.
        asked: with regions, moves that round otherwise are made too.
        times: seconds.
    """
    alone = _for_one(asked)
    start = Form(State(hashed(graph)))
    found = [replace(start, points=tuple(search(graph, alone)))]
    simple = Form(State(hashed(Quickened()(graph))), simplified=True)
    if simple.graph.digest != graph.digest:
        found.append(replace(simple, points=tuple(search(simple.graph, alone))))
    families: Mapping[str, Family] = FAMILIES if asked.fission or asked.rounding else INTERIM
    keep_bits = not (asked.fission or asked.rounding)
    seen, waiting = {one.state.hashed.value for one in found}, list(found[-1:])
    while waiting and len(found) < MOST:
        waiting.sort(key=lambda form: height(form.points, times), reverse=True)
        before = waiting.pop()
        for state in neighbours(before.state, families, retyped, keep_bits):
            if state.hashed.value in seen or len(found) >= MOST:
                continue
            seen.add(state.hashed.value)
            points = tuple(search(state.graph, alone))
            after = Form(state, before.simplified, points)
            found.append(after)
            waiting.append(after)
    return tuple(sorted(found, key=lambda form: height(form.points, times)))


def _for_one(asked: Request) -> Request:
    """Return the search of each of the graphs, without regions."""
    alone = replace(asked, fission=False)
    if asked.iterations is not None:
        return alone
    return replace(alone, time_budget=SHARE * asked.time_budget / MOST)


def height(points: Sequence[Point], times: Sequence[float]) -> float:
    """Return the mean of the logarithms of the least bytes at each time; infinite where there are none.

    Example:
        >>> from peakfold.ir.plan import Plan
        >>> front = Point(8, 2.0, Plan("")), Point(2, 3.0, Plan(""))
        >>> height(front, (2.0, 4.0)) == (log(8) + log(2)) / 2, height(front, (1.0,))
        (True, inf)
    """
    least = [min((p.peak_bytes for p in points if p.seconds <= at), default=0) for at in times]
    return sum(map(log, least)) / len(least) if all(least) else float("inf")
