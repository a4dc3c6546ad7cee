"""Pairs of loops around a large tensor: one of the forward, one of the backward that makes it again.

A tensor much larger than what it is made of (scores of attention, a widened layer, logits) is found with all
that large tensors join to it. What of that is forward is one region, so that the tensor is never whole there;
what is backward is another one, in which the forward is computed again, so that it need not be kept.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Anchor, Run
from peakfold.plan.fission.assign import Refusal, assign
from peakfold.plan.fission.axes import anchor_of
from peakfold.plan.fission.dims import Component, Vertex
from peakfold.plan.fission.grow import Ground, Growth, steps
from peakfold.plan.fission.readers import readers
from peakfold.plan.fission.reading import Reading
from peakfold.plan.fission.split import within
from peakfold.plan.fission.states import Factor


@dataclass(frozen=True, slots=True)
class Piece:
    """What one loop runs, and where its axis is split."""

    runs: tuple[Run, ...]
    anchor: Anchor


@dataclass(frozen=True)
class Pair:
    """Two loops for one large tensor.

    Attributes:
        behind: the loop of the backward, with the forward again.
        ahead: the loop of the forward.
        growth: how the one of the backward was grown.
    """

    behind: Piece
    ahead: Piece
    growth: Growth


def pairs(ground: Ground, hot: Set[Value], component: Component, most: int) -> Iterator[Pair]:
    """Yield the pairs of loops for the largest hot tensors of the forward that the backward reads.

    Args:
        ground: the program.
        hot: storages that live at the peak.
        component: the axis.
        most: how many tensors are looked at.
    """
    graph = ground.graph
    seen: set[tuple[frozenset[int], Vertex]] = set()
    done: set[tuple[tuple[Run, ...], tuple[Run, ...]]] = set()
    for vertex in kept(graph, hot, component)[:most]:
        own = ground.joined(vertex[0])
        key = (own, vertex)
        if key in seen:
            continue
        seen.add(key)
        found = _pair(ground, own, vertex)
        if found is None or not (
            splits(ground.reading, component, found.ahead) and splits(ground.reading, component, found.behind)
        ):
            continue
        if (found.behind.runs, found.ahead.runs) not in done:
            done.add((found.behind.runs, found.ahead.runs))
            yield found


def splits(reading: Reading, component: Component, piece: Piece) -> bool:
    """Whether a loop can be done in parts along an axis where it says so."""
    anchor = piece.anchor
    vertex = next(
        (value, factor)
        for value, factor in component.members
        if (value, factor.dim, factor.outer) == (anchor.value, anchor.dim, anchor.outer)
    )
    inside = within(reading.graph, piece.runs)
    runs = [Run(ident, k) for ident, k in inside.items()]
    return not isinstance(assign(reading.graph, runs, component, vertex, reading), Refusal)


def kept(graph: Graph, hot: Set[Value], component: Component) -> list[Vertex]:
    """Factors of hot tensors that the forward makes and the backward reads, the largest first."""
    phase = {node.id: node.origin.phase for node in graph.nodes}
    found = [
        vertex
        for vertex in component.members
        if vertex[0] in hot and phase.get(vertex[0].node) == "forward" and _is_read_back(graph, vertex[0])
    ]
    return sorted(found, key=lambda v: (-graph.nbytes(v[0]), v[0].node, v[1]))


def _is_read_back(graph: Graph, value: Value) -> bool:
    """Whether the backward reads a storage, through views or not."""
    return any(node.origin.phase == "backward" for node in readers(graph, value))


def _pair(ground: Ground, joined: Set[int], vertex: Vertex) -> Pair | None:
    graph = ground.graph
    phase = {ident: graph.node[ident].origin.phase for ident in joined}
    k_of = {ident: 1 if phase[ident] == "forward" else 0 for ident in joined}
    behind = Growth(ground, k_of)
    behind.grow(vertex)
    first = _backward_reader(behind, vertex[0])
    if first is None:
        return None
    behind.settle(first)
    again = {ident for ident in behind.inside if k_of[ident]}
    if first not in behind.inside or not any(not graph.node[ident].is_view for ident in again):
        return None
    forward = dict.fromkeys((ident for ident in joined if k_of[ident]), 0)
    ahead = Growth(ground, forward, elsewhere=behind.inside, again=again)
    ahead.grow(vertex)
    ahead.settle(vertex[0].node)
    if vertex[0].node not in ahead.inside:
        return None
    back = _anchor_of(behind, k_of)
    if back is None:
        return None
    return Pair(
        Piece(_runs(graph, behind.inside, k_of), anchor_of(back)),
        Piece(_runs(graph, ahead.inside, {}), anchor_of(vertex)),
        behind,
    )


def _runs(graph: Graph, inside: set[int], k_of: Mapping[int, int]) -> tuple[Run, ...]:
    return tuple(sorted(Run(ident, k_of.get(ident, 0)) for ident in steps(graph, inside)))


def _backward_reader(growth: Growth, value: Value) -> int | None:
    """The first step of the backward in a region that large tensors lead to from one of the forward."""
    graph = growth.ground.graph
    order = [node.id for node in graph.nodes if node.id in growth.inside and not growth.k_of[node.id]]
    return next((ident for ident in order if not graph.node[ident].is_view), None)


def _anchor_of(growth: Growth, k_of: Mapping[int, int]) -> Vertex | None:
    """The largest split value that the backward makes in a region: it has no second run."""
    graph = growth.ground.graph
    made = [
        (value, state)
        for ident in growth.inside
        if not k_of[ident] and not graph.node[ident].is_view
        for value in graph.node[ident].outputs
        if isinstance(state := growth.states.get(value), Factor)
    ]
    return max(made, key=lambda v: (graph.nbytes(v[0]), -v[0].node), default=None)
