"""Algorithm 1 of MAGIS: what one tensor dominates, where it is hot."""

from collections.abc import Iterator, Set

from peakfold.ir.graph import Graph, Value
from peakfold.plan.fission.dims import Component
from peakfold.plan.fission.reach import Reach, bits

ROOT = -1


def dominators(
    graph: Graph, reach: Reach, hot: Set[Value], component: Component, levels: int
) -> Iterator[list[int]]:
    """Yield sets of nodes, each all that one node dominates in the graph that an axis induces.

    Scores are those of the paper with two parts: half of the hot bytes dominated, less the bytes of inputs
    that are not hot. In each of ``levels`` bands of the score the innermost nodes are taken.

    Args:
        graph: the program.
        reach: its ancestors and descendants.
        hot: storages that live at the peak.
        component: the axis.
        levels: how many bands.
    """
    places = sorted({reach.place[v.node] for v, _ in component.members if v.node in reach.place})
    parent = _tree(graph, reach, places)
    below = _below(places, parent)
    scores = {place: _score(graph, reach, hot, below[place]) for place in places}
    best = max(scores.values(), default=0.0)
    if best <= 0:
        return
    for level in range(1, levels + 1):
        band = {p for p, s in scores.items() if level <= levels * s / best < level + 1}
        mask = sum(1 << place for place in band)
        for place in sorted(band):
            if not below[place] & mask:
                yield reach.members(below[place])


def _tree(graph: Graph, reach: Reach, places: list[int]) -> dict[int, int]:
    """The immediate dominator of each place; of an acyclic graph one pass in order finds all."""
    known = set(places)
    parent: dict[int, int] = {}
    depth = {ROOT: 0}
    for place in places:
        node = graph.node[reach.ids[place]]
        makers = {reach.place[v.node] for v in node.inputs if v.node in reach.place}
        above = [maker for maker in sorted(makers) if maker in known]
        common = above[0] if above else ROOT
        for other in above[1:]:
            common = _common(parent, depth, common, other)
        parent[place] = common
        depth[place] = depth[common] + 1
    return parent


def _common(parent: dict[int, int], depth: dict[int, int], one: int, other: int) -> int:
    while one != other:
        if depth[one] >= depth[other]:
            one = parent[one]
        else:
            other = parent[other]
    return one


def _below(places: list[int], parent: dict[int, int]) -> dict[int, int]:
    """All places that each one dominates, itself left out."""
    found = dict.fromkeys(places, 0)
    for place in reversed(places):
        above = parent[place]
        if above != ROOT:
            found[above] |= found[place] | (1 << place)
    return found


def _score(graph: Graph, reach: Reach, hot: Set[Value], below: int) -> float:
    if not below:
        return 0.0
    heat = 0
    inputs: set[Value] = set()
    for place in bits(below):
        node = graph.node[reach.ids[place]]
        heat += sum(graph.nbytes(value) for value in node.outputs if value in hot)
        inputs.update(v for v in node.inputs if not _in(reach, below, v))
    cold = {graph.storage(value) for value in inputs} - hot
    return heat / 2 - sum(graph.nbytes(value) for value in cold)


def _in(reach: Reach, mask: int, value: Value) -> bool:
    place = reach.place.get(value.node)
    return place is not None and bool(mask >> place & 1)
