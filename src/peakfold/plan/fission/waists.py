"""Stretches of the forward between narrow waists, and the backward that belongs to each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from peakfold.ir.graph import Graph, Value
from peakfold.plan.fission.reach import Reach, bits

WIDEST = 2
"""Steps that may stand beside a waist."""

MOST = 24
"""Waists that are looked at; evenly chosen where there are more."""


@dataclass(frozen=True)
class Stretch:
    """Nodes that a region may be grown in.

    Attributes:
        k_of: the run of each node.
    """

    k_of: Mapping[int, int]


def stretches(graph: Graph, reach: Reach) -> tuple[Stretch, ...]:
    """Return stretches: forward alone, backward with the forward again, and to the loss and back.

    Between waists i and j: neighbours, pairs of neighbours, quarters, halves, and from each waist to the end.
    """
    forward = reach.mask(n.id for n in graph.nodes if n.origin.phase == "forward")
    backward = reach.mask(n.id for n in graph.nodes if n.origin.phase == "backward")
    waists = _chosen(waists_of(graph, reach, forward))
    found: dict[tuple[tuple[int, int], ...], Stretch] = {}
    for first, last in _spans(len(waists)):
        inside = _between(reach, forward, waists, first, last)
        for stretch in _kinds(graph, reach, inside, backward, last >= len(waists)):
            key = tuple(sorted(stretch.k_of.items()))
            if key:
                found.setdefault(key, stretch)
    return tuple(found.values())


def waists_of(graph: Graph, reach: Reach, forward: int) -> list[int]:
    """Return the places of the forward beside which few steps could run, in order."""
    steps = reach.mask(n.id for n in graph.nodes if not n.is_view and not n.is_host) & forward
    loss = graph.outputs[0].value.node if graph.outputs else -1
    if loss in reach.place:
        steps &= reach.before[reach.place[loss]] | (1 << reach.place[loss])
    found = []
    for place in bits(steps):
        beside = steps & ~reach.before[place] & ~reach.after[place]
        if beside.bit_count() - 1 <= WIDEST:
            found.append(place)
    return found


def _chosen(waists: list[int]) -> list[int]:
    """One waist of each run of neighbours in the program, and at most so many."""
    spread = [w for k, w in enumerate(waists) if k == 0 or w - waists[k - 1] > WIDEST]
    if len(spread) <= MOST:
        return spread
    return [spread[k * len(spread) // MOST] for k in range(MOST)]


def _spans(count: int) -> Iterator[tuple[int, int]]:
    """Pairs of waists, -1 for the begin of the program and ``count`` for its end."""
    yield -1, count
    for width in sorted({1, 2, max(count // 4, 1), max(count // 2, 1)}):
        yield from ((k, min(k + width, count)) for k in range(-1, count, max(width // 2, 1)))
    yield from ((k, count) for k in range(count))


def _between(reach: Reach, forward: int, waists: list[int], first: int, last: int) -> int:
    mask = forward
    if first >= 0:
        mask &= reach.after[waists[first]]
    if last < len(waists):
        mask &= reach.before[waists[last]] | (1 << waists[last])
    return mask


def _kinds(graph: Graph, reach: Reach, inside: int, backward: int, to_end: bool) -> Iterator[Stretch]:
    again = reach.members(inside)
    yield Stretch(dict.fromkeys(again, 0))
    own = _own_backward(graph, reach, inside, backward)
    if not own:
        return
    behind = reach.members(own)
    yield Stretch({**dict.fromkeys(again, 1), **dict.fromkeys(behind, 0)})
    yield Stretch(dict.fromkeys(behind, 0))
    if to_end:
        yield Stretch({**dict.fromkeys(again, 0), **dict.fromkeys(behind, 0)})


def _own_backward(graph: Graph, reach: Reach, inside: int, backward: int) -> int:
    """The backward nodes that read what a stretch of the forward makes, and all between them."""
    readers = 0
    for ident in reach.members(inside):
        for value in graph.node[ident].outputs:
            readers |= _readers(graph, reach, value)
    readers &= backward
    after = before = 0
    for place in bits(readers):
        after |= reach.after[place]
        before |= reach.before[place]
    own = (readers | (after & before)) & backward
    return own | (_leaves(graph, reach, own, backward) & backward)


def _readers(graph: Graph, reach: Reach, value: Value) -> int:
    found = 0
    for user in graph.users.get(value, ()):
        found |= 1 << reach.place[user]
    return found


def _leaves(graph: Graph, reach: Reach, own: int, backward: int) -> int:
    """Backward nodes whose operands are all of a set, or whole: gradients of parameters at its end."""
    found = own
    for ident in reach.members(backward & ~own):
        node = graph.node[ident]
        makers = [reach.place[v.node] for v in node.inputs if v.node in reach.place]
        if makers and all(found >> maker & 1 for maker in makers if backward >> maker & 1):
            reads = any(found >> maker & 1 for maker in makers)
            found |= (1 << reach.place[ident]) if reads and len(graph.users.get(Value(ident), ())) <= 1 else 0
    return found
