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
    """Yield candidates that split a program with a backward layer by layer, where it has layers.

    The first one makes the forward of all layers again; the second one leaves the head of the loss out, to be
    split in its own way beside it. Others make that of the first layers alone again: the rest is one loop
    of forward and backward, which takes less time, and adds up the gradients of all its weights. The last
    ones have half as many layers: less is kept between them, more gradients are added up at once.

    Args:
        ground: the program.
        hot: storages that live at the peak.
        axis: the axis.
    """
    places = cuts(ground.graph, ground.reach, axis)
    fine, coarse = _thinned(places, LAYERS), _thinned(places, LAYERS // 2)
    if len(fine) > 1:
        yield from _along(ground, hot, axis, fine, _depths(len(fine)))
    if 1 < len(coarse) < len(fine):
        yield from _along(ground, hot, axis, coarse, [len(coarse)])


def _along(
    ground: Ground, hot: Set[Value], axis: Component, cut: Sequence[int], depths: Sequence[int]
) -> Iterator[Candidate]:
    """The candidates for some cuts: with all layers apart, or with the first of them."""
    layer = _layers(ground, cut)
    stage = _stages(ground, layer, cut)
    behind = [_behind(ground, hot, axis, at, layer, stage) for at in range(len(cut))]
    for last in depths:
        forward = {node: 0 for node, at in layer.items() if at < last}
        head = {node: 0 for each in (layer, stage) for node, at in each.items() if at >= last}
        ahead, around = _grown(ground, hot, axis, forward), _grown(ground, hot, axis, head)
        layers = [one for grown in reversed(behind[:last]) for one in grown]
        yield from _of_loops([*ahead, *around, *layers])
        if last == len(cut) and around:
            yield from _of_loops([*ahead, *layers])


def _of_loops(found: Sequence[Candidate]) -> Iterator[Candidate]:
    if len({one.length for one in found}) == 1 and len(found) > 2:
        first, *rest = found
        pieces = tuple(Piece(one.runs, one.anchor) for one in rest)
        gain, shared = sum(one.gain for one in found), sum(one.shared for one in found)
        yield replace(first, gain=gain, shared=shared, source="layers", rest=pieces)


def _depths(count: int) -> list[int]:
    """How many of some layers are apart from the head: all, or three quarters of them."""
    return [last for last in (count, count * 3 // 4) if last > 1]


def _behind(
    ground: Ground,
    hot: Set[Value],
    axis: Component,
    at: int,
    layer: Mapping[int, int],
    stage: Mapping[int, int],
) -> list[Candidate]:
    """The loop of the backward of a layer, with its forward again."""
    again = {node: 1 for node, own in layer.items() if own == at}
    behind = {node: 0 for node, own in stage.items() if own == at}
    return _grown(ground, hot, axis, {**again, **behind}) if behind else []


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


def _thinned(found: Sequence[int], most: int) -> list[int]:
    """Every k-th cut, the last one for sure: so many at most."""
    every = -(-len(found) // most) or 1
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

    What all layers read is of none. What is larger than what it is made of goes with those that read it.
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
    return _with_readers(graph, found, read)


def _with_readers(graph: Graph, stage: Mapping[int, int], read: Mapping[int, int]) -> Mapping[int, int]:
    """Make in the layer of its first reader what takes more bytes across the border than what it reads would.

    Such are gradients of a widened layer, made of those of what passes from layer to layer and of weights.

    Args:
        graph: the program.
        stage: the layer of each node of the backward; the last one is first.
        read: the layer of what the backward reads of the forward.
    """
    found = dict(stage)
    users: dict[int, list[int]] = {}
    for node in graph.nodes:
        for maker in set() if node.is_view else {graph.storage(value).node for value in node.inputs}:
            users.setdefault(maker, []).append(node.id)
    for node in reversed([node for node in graph.nodes if node.id in stage and not node.is_view]):
        at = max((found.get(user, len(stage)) for user in users.get(node.id, ())), default=len(stage))
        if at >= found[node.id]:
            continue
        new = 0
        for maker in {graph.storage(value).node for value in node.inputs}:
            of = found.get(maker, read.get(maker, at))
            others = (found.get(user, at + 1) for user in users[maker] if user != node.id)
            if of > at and all(other > at for other in others):
                new += _nbytes(graph, graph.node[maker])
        if new < _nbytes(graph, node):
            found[node.id] = at
    for node in graph.nodes:
        if node.id in found and node.is_view:
            maker = graph.storage(node.inputs[0]).node
            found[node.id] = found.get(maker, found[node.id])
    return found


def _grown(ground: Ground, hot: Set[Value], axis: Component, k_of: Mapping[int, int]) -> list[Candidate]:
    return list(largest_in(ground, hot, axis, k_of, "layers"))[:1]


def _nbytes(graph: Graph, node: Node) -> int:
    return sum(graph.nbytes(value) for value in node.outputs)
