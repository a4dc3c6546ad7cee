"""Order and addresses together: a step is moved, and the move is judged by the arena that it leads to.

The idea is that of OLLA (Steiner et al., 2022), which solves both by one integer program; here it is a local
search. A move takes one step to another place between what it reads and what reads it; it stays when the
arena becomes no larger.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from peakfold.budget import require_seed
from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Node
from peakfold.ir.plan import Compute, Plan, Schedule
from peakfold.plan.memory.layout import Layout, lay_out, live_there
from peakfold.plan.memory.lifetimes import predicted
from peakfold.plan.schedule.lower import lower

MOVES = 200
ANYWHERE = 0.25
"""Share of the moves that take any step at all."""
SECONDS = 0.05
"""Of placing the buffers of one order."""


@dataclass(frozen=True)
class Ordered:
    """An order and its arena.

    Attributes:
        plan: the decisions, with the order.
        layout: where everything lies, as predicted.
        moves: how many were tried.
    """

    plan: Plan
    layout: Layout
    moves: int


def improve_order(
    graph: Graph, costs: Costs, plan: Plan, *, capacity: int = 0, moves: int = MOVES, seed: int = 0
) -> Ordered:
    """Move steps about until the arena is within a capacity, or so many moves were tried.

    Args:
        graph: the program.
        costs: of its nodes.
        plan: where to start from.
        capacity: bytes to reach; 0 for as few as can be had.
        moves: how many are tried at most.
        seed: the same seed gives the same order.

    Returns:
        The best order found; the given one where none is better.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output, Value
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(64))
        >>> def made(i, name, op, of, n):
        ...     args = tuple(Value(v) for v in of)
        ...     return Node(i, name, Op(f"aten.{op}"), args, (), (tensor(n),), (None,))
        >>> nodes = (made(1, "a", "big.default", (0,), 256), made(2, "b", "big.default", (0,), 256),
        ...          made(3, "c", "sum.default", (1,), 16), made(4, "d", "join.default", (2, 3), 16))
        >>> graph = Graph((x,), nodes, (Output("y", Value(4)),))
        >>> found = improve_order(graph, Costs({}, {}), Plan(graph.digest))
        >>> found.plan.order, found.layout.arena
        ((1, 3, 2, 4), 1152)
    """
    require_seed(seed, "memory")
    search = _Search(graph, costs, plan, np.random.default_rng(seed))
    tried = 0
    while tried < moves and search.layout.arena > max(capacity, 1):
        tried += 1
        search.move()
    return Ordered(search.plan, search.layout, tried)


class _Search:
    def __init__(self, graph: Graph, costs: Costs, plan: Plan, random: np.random.Generator) -> None:
        steps = [node for node in graph.nodes if not node.is_view]
        self._graph, self._costs, self._random = graph, costs, random
        self._order = list(plan.order) or [node.id for node in steps]
        self._makers = {node.id: _makers(graph, node) for node in steps}
        self._readers = _reversed(self._makers)
        self._drawing = [node.id for node in steps if node.op.random]
        self.plan = plan
        self.schedule = lower(graph, plan)
        self.layout = self._judged(self.schedule)

    def move(self) -> None:
        """Try to move one step; keep that unless the arena or the bytes over time grow."""
        at = self._picked()
        low, high = self._room(at)
        if low == high:
            return
        to = int(self._random.integers(low, high + 1))
        order = _moved(self._order, at, to)
        plan = replace(self.plan, order=tuple(order))
        schedule = lower(self._graph, plan)
        layout = self._judged(schedule)
        if _rank(layout) <= _rank(self.layout):
            self._order, self.plan, self.schedule, self.layout = order, plan, schedule, layout

    def _picked(self) -> int:
        """A step's place: mostly of one that makes or reads what is live where the most is."""
        crowd = self._crowd()
        if not crowd or self._random.random() < ANYWHERE:
            return int(self._random.integers(len(self._order)))
        node = crowd[int(self._random.integers(len(crowd)))]
        around = [node, *(reader for reader in self._readers[node] if reader in self._readers)]
        return self._order.index(around[int(self._random.integers(len(around)))])

    def _crowd(self) -> list[int]:
        rows = {self.layout.trace.requests[i].row for i in live_there(self.layout.trace)}
        steps = (self.schedule.steps[row] for row in sorted(rows) if row >= 0)
        return [step.run.node for step in steps if isinstance(step, Compute)]

    def _room(self, at: int) -> tuple[int, int]:
        """The first and the last place that a step may have, the others as they are."""
        place = {node: i for i, node in enumerate(self._order)}
        node = self._order[at]
        before = [place[maker] for maker in self._makers[node]]
        after = [place[reader] for reader in self._readers[node]]
        if node in self._drawing:
            before += [place[other] for other in self._drawing if place[other] < at]
            after += [place[other] for other in self._drawing if place[other] > at]
        return max(before, default=-1) + 1, min(after, default=len(self._order)) - 1

    def _judged(self, schedule: Schedule) -> Layout:
        return lay_out(predicted(self._graph, schedule, self._costs), time_budget=SECONDS)


def _rank(layout: Layout) -> tuple[int, int]:
    """What is least for the best order: the arena, then bytes over time."""
    requests = layout.trace.requests
    area = sum(r.size * (r.dies - r.born) for r in requests if r.dies is not None)
    return layout.arena, area


def _moved(order: Sequence[int], at: int, to: int) -> list[int]:
    left = [*order[:at], *order[at + 1 :]]
    return [*left[:to], order[at], *left[to:]]


def _makers(graph: Graph, node: Node) -> list[int]:
    """The steps whose results a step reads, through views."""
    found, stack, seen = [], list(node.inputs), set()
    while stack:
        value = stack.pop()
        if value in seen or value.node not in graph.node:
            continue
        seen.add(value)
        maker = graph.node[value.node]
        if maker.is_view:
            stack.extend(maker.inputs)
        else:
            found.append(maker.id)
    return found


def _reversed(makers: dict[int, list[int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {node: [] for node in makers}
    for node, of in makers.items():
        for maker in of:
            found[maker].append(node)
    return found
