"""Where a program could be split: regions along each axis, with what they would gain [MAGIS, section 4.2].

Sources: dominators of hot tensors (algorithm 1), the hot tensors themselves, stretches of the forward
between narrow waists, with their backward, in which the forward is computed again, one loop of forward and
backward around a large tensor, and pairs of a loop of the forward and one of the backward around it; pairs
that are alike, as in every layer, are one more.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Literal

from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Anchor, Run
from peakfold.plan.fission.axes import anchor_of
from peakfold.plan.fission.copies import Layers
from peakfold.plan.fission.dims import Component, Vertex
from peakfold.plan.fission.dominators import dominators
from peakfold.plan.fission.finer import times
from peakfold.plan.fission.grow import Ground, Growth, steps
from peakfold.plan.fission.pairs import Pair, Piece, kept, pairs, splits
from peakfold.plan.fission.reading import Reading
from peakfold.plan.fission.states import Factor, Partial
from peakfold.plan.fission.waists import Stretch, stretches
from peakfold.plan.schedule.deadline import Deadline

Source = Literal[
    "widest", "stages", "dominator", "hot", "stretch", "bridge", "pair", "alike", "layers", "turn"
]

LEVELS = 4
"""Bands of scores (algorithm 1's L)."""

AXES = 12
"""Axes of most bytes at the peak that are looked at."""

HOT = 24
"""Largest tensors at the peak that regions are grown from, for each axis."""

BRIDGES = 4
"""Largest tensors of the forward, one of those alike, with forward and backward around them in one loop."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A region that could be split.

    Attributes:
        axis: name of the axis.
        length: its places.
        runs: the region.
        anchor: where the axis is split.
        gain: bytes at the peak that two parts would save, by formula (2) of the paper; what leaves the region
            whole is not counted as saved.
        shared: bytes that each part adds into, whole: gradients of weights and the like.
        source: where it comes from.
        rest: loops that are split with it, in as many parts.
        outside: runs that it is cheaper without, where it is split.
    """

    axis: str
    length: int
    runs: tuple[Run, ...]
    anchor: Anchor
    gain: int
    shared: int
    source: Source
    rest: tuple[Piece, ...] = ()
    outside: frozenset[Run] = frozenset()

    @property
    def every(self) -> tuple[Run, ...]:
        """The runs of all its loops."""
        return (*self.runs, *(run for piece in self.rest for run in piece.runs))

    @property
    def key(self) -> tuple[str, tuple[Run, ...]]:
        """What tells it from others: its runs; where it can be nested in many, along which axis too."""
        return self.axis if self.source == "bridge" else "", self.every


def candidates(
    graph: Graph,
    hot: Set[Value],
    axes: Iterable[Component],
    *,
    levels: int = LEVELS,
    most: int = AXES,
    reading: Reading | None = None,
    deadline: Deadline | None = None,
) -> tuple[Candidate, ...]:
    """Return regions that could be split, those that gain most first.

    Args:
        graph: the program, prepared.
        hot: storages that live at the peak.
        axes: the axes of the program.
        levels: bands of scores in which dominators are looked for.
        most: how many axes are looked at.
        reading: of the graph, where it is at hand.
        deadline: after it, those that are found by then are taken.
    """
    ground = Ground(reading or Reading(graph))
    found: dict[tuple[str, tuple[Run, ...]], Candidate] = {}
    plain = {node.id: 0 for node in graph.nodes if node.origin.phase != "update"}
    parts = stretches(graph, ground.reach)
    layers = Layers(ground.reading) if all(node.origin.phase == "forward" for node in graph.nodes) else None
    until = deadline or Deadline()
    for component in hottest(graph, hot, axes)[:most]:
        if until.is_over:
            break
        made = []
        for one in _of_axis(ground, hot, component, plain, parts, levels):
            made.append(one)
            if until.is_over:
                break
        if layers is not None:
            made += [one for each in made for one in _everywhere(layers, component, each)]
        for candidate in made:
            known = found.get(candidate.key)
            if known is None or candidate.gain > known.gain:
                found[candidate.key] = candidate
    return tuple(sorted(found.values(), key=lambda item: (-item.gain, item.axis, item.runs)))


def hottest(graph: Graph, hot: Set[Value], axes: Iterable[Component]) -> list[Component]:
    """Return the axes of more than one place by the bytes at the peak that run along them, most first."""
    sized = []
    for component in axes:
        storages = {graph.storage(value) for value, _ in component.members} & hot
        nbytes = sum(graph.nbytes(value) for value in storages if value.node in graph.node)
        if nbytes and component.length > 1:
            sized.append((nbytes, component))
    return [component for _, component in sorted(sized, key=lambda item: (-item[0], item[1].name))]


def _of_axis(
    ground: Ground,
    hot: Set[Value],
    component: Component,
    plain: Mapping[int, int],
    parts: tuple[Stretch, ...],
    levels: int,
) -> Iterator[Candidate]:
    seen: set[frozenset[int]] = set()
    tensors = _hot_members(ground.graph, hot, component)
    for vertex in tensors[:HOT]:
        if not any(vertex[0].node in ids for ids in seen):
            made = _grown(ground, hot, component, plain, vertex, "hot")
            if made is not None:
                seen.add(frozenset(run.node for run in made.runs))
                yield made
    for nodes in dominators(ground.graph, ground.reach, hot, component, levels):
        allowed = {ident: 0 for ident in nodes if ident in plain}
        yield from largest_in(ground, hot, component, allowed, "dominator")
    for stretch in parts:
        yield from largest_in(ground, hot, component, stretch.k_of, "stretch")
    yield from _bridges(ground, hot, component)
    yield from _paired(ground, hot, component)


def _bridges(ground: Ground, hot: Set[Value], component: Component) -> Iterator[Candidate]:
    """Forward and backward around a large tensor in one loop, with nothing computed again: a loss's head."""
    phase = {node.id: node.origin.phase for node in ground.graph.nodes}
    kinds, seen = ground.reading.kinds, set[frozenset[int]]()
    for vertex in kept(ground.graph, hot, component)[:HOT]:
        joined = ground.joined(vertex[0])
        alike = frozenset(kinds[ident] for ident in joined)
        if alike in seen or len(seen) == BRIDGES:
            continue
        seen.add(alike)
        made = _grown(ground, hot, component, dict.fromkeys(joined, 0), vertex, "bridge")
        if made is not None and len({phase[run.node] for run in made.runs}) > 1:
            yield made


def _paired(ground: Ground, hot: Set[Value], component: Component) -> Iterator[Candidate]:
    """Pairs of loops around hot tensors; those that are alike together; and all of them together."""
    alike: dict[tuple[tuple[str, int], ...], list[Candidate]] = {}
    for pair in pairs(ground, hot, component, HOT):
        made = _of_pair(component, pair, hot)
        yield made
        ops = tuple((ground.graph.node[run.node].op.name, run.k) for run in made.runs)
        alike.setdefault(ops, []).append(made)
    for group in alike.values():
        yield from _together(group)
    if len(alike) > 1:
        yield from _together([one for group in alike.values() for one in group])


def _of_pair(component: Component, pair: Pair, hot: Set[Value]) -> Candidate:
    gain, shared = _gain(pair.growth, hot)
    behind = pair.behind
    whole = (component.name, component.length, behind.runs, behind.anchor)
    return Candidate(*whole, gain, shared, "pair", (pair.ahead,))


def _together(group: list[Candidate]) -> Iterator[Candidate]:
    """One candidate of several that have no run in common."""
    taken: set[Run] = set()
    chosen: list[Candidate] = []
    for one in sorted(group, key=lambda item: -item.gain):
        if taken.isdisjoint(one.every):
            taken.update(one.every)
            chosen.append(one)
    if len(chosen) > 1:
        first, *others = chosen
        pieces = [piece for one in others for piece in (Piece(one.runs, one.anchor), *one.rest)]
        yield replace(
            first,
            gain=sum(one.gain for one in chosen),
            shared=sum(one.shared for one in chosen),
            source="alike",
            rest=(*first.rest, *pieces),
        )


def _everywhere(layers: Layers, component: Component, one: Candidate) -> Iterator[Candidate]:
    """A region and its copies as one candidate; without its last steps too, if it has more of them then."""
    if one.rest:
        return
    runs = sorted(one.runs, key=lambda run: layers.place[run.node])
    most = 0
    for count in range(len(runs), 0, -1):
        if one.anchor.value.node not in {run.node for run in runs[:count]}:
            return
        piece = Piece(tuple(sorted(runs[:count])), one.anchor)
        shorter = count < len(runs)
        if layers.places(piece) <= most or (shorter and not splits(layers.reading, component, piece)):
            continue
        rest = tuple(layers.copies(component, piece))
        if len(rest) > most:
            most = len(rest)
            yield replace(one, runs=piece.runs, source="alike", rest=rest)


def largest_in(
    ground: Ground, hot: Set[Value], component: Component, allowed: Mapping[int, int], source: Source
) -> Iterator[Candidate]:
    """The regions grown inside some nodes from the largest tensor that they make along an axis.

    Scores of queries and keys of one sequence have the axis twice; they are split along either.
    """
    graph = ground.graph
    members = [v for v in component.members if v[0].node in allowed and not allowed[v[0].node]]
    if members:
        largest = max(members, key=lambda v: (graph.nbytes(v[0]), -v[0].node))
        for anchor in (v for v in members if v[0] == largest[0]):
            made = _grown(ground, hot, component, allowed, anchor, source)
            if made is not None:
                yield made


def _hot_members(graph: Graph, hot: Set[Value], component: Component) -> list[Vertex]:
    """Factors of hot tensors that nodes make along an axis, the largest first."""
    found = [v for v in component.members if v[0] in hot and v[0].node in graph.node]
    return sorted(found, key=lambda v: (-graph.nbytes(v[0]), v[0].node, v[1]))


def _grown(
    ground: Ground,
    hot: Set[Value],
    component: Component,
    k_of: Mapping[int, int],
    anchor: Vertex,
    source: Source,
) -> Candidate | None:
    growth = Growth(ground, k_of)
    growth.grow(anchor)
    growth.settle(anchor[0].node)
    growth.share(anchor[0].node)
    ids = list(steps(ground.graph, growth.inside))
    if anchor[0].node not in growth.inside or not ids or all(k_of[ident] for ident in ids):
        return None
    gain, shared = _gain(growth, hot)
    runs = tuple(sorted(Run(ident, k_of[ident]) for ident in ids))
    length = component.length * times(sorted(growth.inside), growth.states, ground.reading, component)
    return Candidate(component.name, length, runs, anchor_of(anchor), gain, shared, source)


def _gain(growth: Growth, hot: Set[Value]) -> tuple[int, int]:
    """Bytes at the peak that two parts save, and bytes that are added into."""
    graph = growth.ground.graph
    saved = shared = 0
    inputs: set[Value] = set()
    for ident in growth.inside:
        node = graph.node[ident]
        outs = set() if growth.k_of[ident] else set(growth.outputs(node))
        for value in node.outputs:
            state = growth.states[value]
            if value in outs:
                shared += graph.nbytes(value) if isinstance(state, Partial) else 0
            elif value in hot and isinstance(state, Factor):
                saved += graph.nbytes(value) // 2
        inputs.update(graph.storage(v) for v in node.inputs if v.node not in growth.inside)
    held = sum(graph.nbytes(value) for value in inputs if value not in hot and value.node in graph.node)
    return saved - held, shared
