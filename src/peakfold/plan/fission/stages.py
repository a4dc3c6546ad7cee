"""All that can be done in parts along an axis, as one region after the other.

What couples the parts (a batch normalization's statistics, the sums of its gradient) must be complete before
the next region begins: a value that is complete only after the last part of region k is read by region k + 1.
So every node gets the number of the first region that it can be in, and a program that is coupled at fifty
places is fifty loops and more, each convex by construction. With the statistics kept, what the backward reads
of the forward is element-wise: it is computed again in parts, where that is no product or convolution.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.plan import Run
from peakfold.ir.regions import why_not_inside
from peakfold.ops.flops import kernels
from peakfold.ops.links import Factor
from peakfold.plan.fission.assign import Refusal, assign
from peakfold.plan.fission.axes import anchor_of
from peakfold.plan.fission.dims import Component, Vertex
from peakfold.plan.fission.pairs import Piece
from peakfold.plan.fission.reading import Reading
from peakfold.plan.fission.split import within
from peakfold.plan.fission.states import Partial, State
from peakfold.plan.fission.transfer import RefusedError

LEAST = 64
"""A region works on a tensor that has at least one in so many of the bytes of the largest one."""
READERS = 1
"""Forward readers of a value that is computed again: what more of them read, as around a skip, is kept."""


@dataclass
class _Stages:
    """The numbering of one graph.

    Attributes:
        reading: of the program, prepared.
        component: the axis.
        out: nodes that stay outside whatever their operands are.
        anew: whether everything of the forward that a later region reads in parts is made in them again.
        stage: number of the region of each node inside.
        after: number of the last region that each node outside depends on, -1 for none.
        states: of every value.
    """

    reading: Reading
    component: Component
    out: frozenset[int]
    anew: bool = False
    stage: dict[int, int] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)
    states: dict[Value, State] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The program."""
        return self.reading.graph

    def __post_init__(self) -> None:
        found: dict[Value, list[Factor]] = {}
        for value, factor in self.component.members:
            found.setdefault(value, []).append(factor)
        self.vertices = frozenset(self.component.members)
        self.factors = {value: own[0] for value, own in found.items() if len(own) == 1}

    def number(self) -> None:
        """Give each node its number, in program order."""
        for node in self.graph.nodes:
            if not self._inside(node):
                self.after[node.id] = max((self._last(value) for value in node.inputs), default=-1)

    def _last(self, value: Value) -> int:
        return self.stage.get(value.node, self.after.get(value.node, -1))

    def _inside(self, node: Node) -> bool:
        if (
            node.id in self.out
            or node.origin.phase == "update"
            or (not node.is_view and why_not_inside(node))
        ):
            return False
        sums = [v for v in node.inputs if isinstance(self.states.get(v), Partial)]
        once = not node.is_view and len(sums) == len(node.inputs)
        for passes in (True, False) if sums and not once else (False,):
            stage = max((self._earliest(value, passes) for value in node.inputs), default=0)
            if passes and any(self.stage[value.node] != stage for value in sums):
                continue
            states = {value: self._read(value, passes) for value in node.inputs}
            try:
                made = self.reading.transfer(node, states, self._wanted(node))
            except RefusedError:
                continue
            if any(state is not None for state in made):
                self.stage[node.id] = stage
                self.states.update(zip(node.outputs, made, strict=True))
                return True
        return False

    def _wanted(self, node: Node) -> dict[Value, Factor]:
        return {value: self.factors[value] for value in node.outputs if value in self.factors}

    def _earliest(self, value: Value, passes: bool) -> int:
        """The first region that may read a value."""
        if value.node in self.stage:
            whole = isinstance(self.states[value], Partial) and not passes
            return self.stage[value.node] + whole
        return self.after.get(value.node, -1) + 1

    def _read(self, value: Value, passes: bool) -> State:
        state = self.states.get(value)
        if isinstance(state, Partial):
            return state if passes else None
        return state if value.node in self.stage else self.factors.get(value)


def stages(
    graph: Graph, component: Component, *, anew: bool = False, reading: Reading | None = None
) -> tuple[Piece, ...]:
    """Return the regions that come one after the other, each with what of the forward it computes again.

    Args:
        graph: the program, prepared.
        component: the axis.
        anew: whether that is everything that it reads in parts, products and all: no score of a softmax that
            is taken apart is kept whole then between what sums it and what uses the sum.
        reading: of the graph, where it is at hand.
    """
    reading = reading or Reading(graph)
    out: frozenset[int] = frozenset()
    while True:
        found = _Stages(reading, component, out, anew)
        found.number()
        pieces, refused = _pieces(found)
        if not refused:
            return pieces
        out |= refused


def _pieces(found: _Stages) -> tuple[tuple[Piece, ...], frozenset[int]]:
    """The regions, and the nodes that keep one of them from being split."""
    pieces, refused = [], set[int]()
    for runs in _regions(found):
        anchor = _anchor(found, runs)
        if anchor is None:
            continue
        inside = [Run(ident, k) for ident, k in within(found.graph, runs).items()]
        assigned = assign(found.graph, inside, found.component, anchor, found.reading)
        if isinstance(assigned, Refusal):
            own = {run.node for run in runs}
            refused.add(assigned.node if assigned.node in own else runs[-1].node)
        else:
            pieces.append(Piece(runs, anchor_of(anchor)))
    return tuple(pieces), frozenset(refused)


def _regions(found: _Stages) -> Iterator[tuple[Run, ...]]:
    by_stage: dict[int, list[Node]] = {}
    for node in found.graph.nodes:
        if node.id in found.stage and not node.is_view:
            by_stage.setdefault(found.stage[node.id], []).append(node)
    graph = found.graph
    touched = {
        stage: max(
            graph.nbytes(v) for node in own for v in (*node.inputs, *node.outputs) if v in found.factors
        )
        for stage, own in by_stage.items()
    }
    times: dict[int, int] = {}
    for stage in sorted(by_stage):
        own = by_stage[stage]
        if touched[stage] * LEAST < max(touched.values()):
            continue
        again = _again(found, own, stage)
        times |= {ident: times.get(ident, 0) + 1 for ident in again}
        yield tuple(sorted((*(Run(node.id) for node in own), *(Run(ident, times[ident]) for ident in again))))


def _anchor(found: _Stages, runs: Sequence[Run]) -> Vertex | None:
    """The largest split value that a region makes first; None where it has none."""
    graph = found.graph
    made = [
        (value, state)
        for run in runs
        if not run.k
        for value in graph.node[run.node].outputs
        if isinstance(state := found.states.get(value), Factor) and (value, state) in found.vertices
    ]
    return max(made, key=lambda v: (graph.nbytes(v[0]), -v[0].node), default=None)


def _again(found: _Stages, own: Sequence[Node], stage: int) -> set[int]:
    """Nodes of the forward that a region computes again, for its backward if not anew, from what is kept."""
    graph = found.graph
    again: set[int] = set()
    readers = (node for node in own if found.anew or node.origin.phase == "backward")
    waiting = [value for node in readers for value in node.inputs]
    seen = set(waiting)
    while waiting:
        value = waiting.pop()
        node = graph.node.get(value.node)
        if node is None or found.stage.get(node.id, stage) >= stage or node.origin.phase != "forward":
            continue
        if not node.is_view:
            allowed = found.anew or _is_cheap(graph, node)
            if not allowed or not isinstance(found.states.get(value), Factor):
                continue
            again.add(node.id)
        fresh = [v for v in node.inputs if v not in seen]
        seen.update(fresh)
        waiting += fresh
    return again


def _is_cheap(graph: Graph, node: Node) -> bool:
    """Whether a node is no product, and not kept for several readers in the forward."""
    readers = {
        user
        for value in node.outputs
        for user in graph.users.get(value, ())
        if graph.node[user].origin.phase == "forward"
    }
    return len(readers) <= READERS and not any(kernel.product for kernel in kernels(graph, node))
