"""Loops layer by layer: one of the forward, and one of each layer's backward, with its forward again.

A loop around forward and backward adds up the gradients of all weights at once. Here what passes from one
layer to the next is whole, and nothing else: the weights of a layer are updated before the gradients of the
next one are made.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from peakfold.ir.graph import Graph, Node, Value
from peakfold.plan.fission.candidates import Candidate, largest_in
from peakfold.plan.fission.dims import Component
from peakfold.plan.fission.grow import Ground
from peakfold.plan.fission.pairs import Piece
from peakfold.plan.fission.reach import Reach

LAYERS = 8
"""Most layers; where a program has more places to cut, several are one."""
SMALL = 64
"""What takes less than this part of the largest tensor of the forward may live across a cut."""
SHARED = 0.5
"""What lives through more than this part of the forward may, too: all layers read it."""


def layered(ground: Ground, hot: Set[Value], axis: Component) -> Iterator[Candidate]:
    """Yield the candidate that splits a program with a backward layer by layer, where it has layers.

    Args:
        ground: the program.
        hot: storages that live at the peak.
        axis: the axis.
    """
    graph = ground.graph
    cut = _thinned(cuts(graph, ground.reach, axis))
    if len(cut) < 2:
        return
    layer = _layers(ground, cut)
    stage = _stages(ground, layer, cut)
    last = len(cut)
    forward = {node: 0 for node, at in layer.items() if at < last}
    head = {node: 0 for each in (layer, stage) for node, at in each.items() if at == last}
    found = [*_grown(ground, hot, axis, forward), *_grown(ground, hot, axis, head)]
    for at in reversed(range(last)):
        again = {node: 1 for node, own in layer.items() if own == at}
        behind = {node: 0 for node, own in stage.items() if own == at}
        found += _grown(ground, hot, axis, {**again, **behind}) if behind else ()
    if len({one.length for one in found}) == 1 and len(found) > 2:
        first, *rest = found
        pieces = tuple(Piece(one.runs, one.anchor) for one in rest)
        gain, shared = sum(one.gain for one in found), sum(one.shared for one in found)
        yield replace(first, gain=gain, shared=shared, source="layers", rest=pieces)


def cuts(graph: Graph, reach: Reach, axis: Component) -> list[int]:
    """Return the nodes of the forward that make all that is large along an axis and lives behind them.

    Of several in a row it is the smallest, the last one of these.
    """
    along = {value.node for value, _ in axis.members}
    steps = [node for node in graph.nodes if node.origin.phase == "forward" and not node.is_view]
    largest = max((_nbytes(graph, node) for node in steps), default=0)
    large = [n.id for n in steps if n.id in along and _nbytes(graph, n) * SMALL >= largest > 0]
    readers = _readers(graph, reach, steps)
    large = [ident for ident in large if not _is_shared(reach, readers[ident], ident, steps)]
    mask = reach.mask(large)
    rows: list[list[int]] = []
    before = -2
    for at, ident in enumerate(large):
        here = 1 << reach.place[ident]
        until = reach.before[reach.place[ident]] | here
        beside = mask & ~until & ~reach.after[reach.place[ident]]
        ahead = reach.members(mask & until & ~here)
        if beside or any(readers[other] & ~until for other in ahead):
            continue
        if at != before + 1:
            rows.append([])
        rows[-1].append(ident)
        before = at
    return [min(reversed(row), key=lambda ident: _nbytes(graph, graph.node[ident])) for row in rows]


def _readers(graph: Graph, reach: Reach, steps: Sequence[Node]) -> Mapping[int, int]:
    """The steps that read what each node makes, through views or not."""
    found = dict.fromkeys((node.id for node in graph.nodes), 0)
    for node in steps:
        for value in node.inputs:
            maker = graph.storage(value).node
            if maker in found:
                found[maker] |= 1 << reach.place[node.id]
    return found


def _is_shared(reach: Reach, readers: int, ident: int, steps: Sequence[Node]) -> bool:
    """Whether a value lives through more than half of the forward, as what all layers read does."""
    between = sum(1 for node in steps if reach.place[ident] < reach.place[node.id] < readers.bit_length())
    return between > SHARED * len(steps)


def _thinned(found: Sequence[int]) -> list[int]:
    """Every k-th cut, the last one for sure."""
    every = -(-len(found) // LAYERS) or 1
    return list(found[::-1][::every][::-1])


def _layers(ground: Ground, cut: Sequence[int]) -> Mapping[int, int]:
    """The layer of each node of the forward: a cut is the end of one."""
    reach = ground.reach
    forward = reach.mask(node.id for node in ground.graph.nodes if node.origin.phase == "forward")
    found: dict[int, int] = {}
    for at, ident in enumerate(cut):
        place = reach.place[ident]
        for node in reach.members(forward & (reach.before[place] | 1 << place)):
            found.setdefault(node, at)
    for node in reach.members(forward):
        found.setdefault(node, len(cut))
    return found


def _stages(ground: Ground, layer: Mapping[int, int], cut: Sequence[int]) -> Mapping[int, int]:
    """The layer of each node of the backward: the first that it reads from. A cut is the next one's.

    What all layers read is of none.
    """
    graph = ground.graph
    steps = [node for node in graph.nodes if node.origin.phase == "forward" and not node.is_view]
    readers = _readers(graph, ground.reach, steps)
    shared = {node.id for node in steps if _is_shared(ground.reach, readers[node.id], node.id, steps)}
    read = {ident: at for ident, at in layer.items() if ident not in shared}
    read.update({ident: at + 1 for at, ident in enumerate(cut)})
    found: dict[int, int] = {}
    for node in graph.nodes:
        if node.origin.phase == "backward":
            makers = [graph.storage(value).node for value in node.inputs]
            of = [found.get(maker, read.get(maker)) for maker in makers]
            found[node.id] = min((at for at in of if at is not None), default=len(cut))
    return found


def _grown(ground: Ground, hot: Set[Value], axis: Component, k_of: Mapping[int, int]) -> list[Candidate]:
    return list(largest_in(ground, hot, axis, k_of, "layers"))[:1]


def _nbytes(graph: Graph, node: Node) -> int:
    return sum(graph.nbytes(value) for value in node.outputs)
