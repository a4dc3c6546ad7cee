"""How each value stands in one region: whole, split, or a partial result; or why it is no region."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.plan import Run
from peakfold.ops.links import Factor
from peakfold.plan.fission.dims import Component, Vertex
from peakfold.plan.fission.halos import HaloError, halos
from peakfold.plan.fission.reading import Reading
from peakfold.plan.fission.states import Assignment, State
from peakfold.plan.fission.transfer import Refusal, RefusedError, counts

__all__ = ["Refusal", "assign", "outputs_of"]

WIDEST = 8
"""Pieces of an axis that are tried, without an anchor."""


def assign(
    graph: Graph,
    runs: Iterable[Run],
    component: Component,
    anchor: Vertex | None = None,
    reading: Reading | None = None,
) -> Assignment | Refusal:
    """Return the state of every value that a region reads or makes, or why the region is none.

    Inside a region an axis may fall apart: rows of the queries and rows of the keys come from one sequence,
    but one region splits only one of them. Without an anchor, the piece that most values have comes first.

    Args:
        graph: the program.
        runs: the region.
        component: the axis that it is to be split along.
        anchor: a value of the region and the factor along which it is to be split.
        reading: of the graph, where it is at hand.
    """
    reading = reading or Reading(graph)
    k_of = {run.node: run.k for run in runs}
    nodes = reading.in_order(ident for ident in k_of if ident in graph.node)
    touched = dict.fromkeys(value for node in nodes for value in (*node.inputs, *node.outputs))
    seeds = [member for member in component.members if member[0] in touched]
    seeds = seeds if anchor is None else [anchor, *(seed for seed in seeds if seed != anchor)]
    if not seeds:
        return Refusal(f"nothing in the region runs along {component.name}")
    first: Refusal | None = None
    for factors in _candidates(reading, k_of, seeds, anchor is not None):
        found = _checked(reading, nodes, k_of, factors)
        why = found if isinstance(found, Refusal) else _whole_output(graph, nodes, k_of, found)
        if why is None and not isinstance(found, Refusal):
            return {value: found.get(value) for value in touched}
        first = first or why
    return first or _twice(reading, k_of, seeds)


def _candidates(
    reading: Reading, inside: Container[int], seeds: list[Vertex], anchored: bool
) -> Iterator[dict[Value, Factor]]:
    """Yield ways to split values: the widest piece with all others that agree with it, then each alone.

    Where the first seed is an anchor, its piece alone counts as the widest.
    """
    pieces: list[dict[Value, Factor]] = []
    seen: set[Vertex] = set()
    for seed in seeds:
        if seed not in seen:
            vertices = _piece(reading, inside, seed)
            seen |= vertices
            piece = dict(vertices)
            if len(piece) == len(vertices):
                pieces.append(piece)
            elif anchored and seed == seeds[0]:
                return
    held = 1 if anchored else 0
    pieces[held:] = sorted(pieces[held:], key=len, reverse=True)
    for index, piece in enumerate(pieces[: 1 if anchored else WIDEST]):
        others = pieces[:index] + pieces[index + 1 :]
        joined = _joined(piece, others)
        if len(joined) > len(piece):
            yield joined
        yield piece


def _twice(reading: Reading, inside: Container[int], seeds: list[Vertex]) -> Refusal:
    """Say which value would have to be split along two of its factors at once."""
    vertices = sorted(_piece(reading, inside, seeds[0]))
    for (value, factor), (other, second) in pairwise(vertices):
        if value == other:
            dims = f"dimensions {factor.dim} and {second.dim}" if factor.dim != second.dim else "two factors"
            return Refusal(f"{reading.graph.name_of(value)} runs along it twice, in {dims}")
    return Refusal("nothing of the region can be split along it")


def _joined(piece: dict[Value, Factor], others: list[dict[Value, Factor]]) -> dict[Value, Factor]:
    found = dict(piece)
    for other in others:
        if all(found.get(value, factor) == factor for value, factor in other.items()):
            found |= other
    return found


def _piece(reading: Reading, inside: Container[int], seed: Vertex) -> set[Vertex]:
    """Every factor that must be split where one is."""
    found = {seed}
    waiting = [seed]
    while waiting:
        for ident, other in reading.beside(waiting.pop()):
            if other not in found and ident in inside:
                found.add(other)
                waiting.append(other)
    return found


def _checked(
    reading: Reading, nodes: Sequence[Node], inside: Container[int], factors: Mapping[Value, Factor]
) -> Assignment | Refusal:
    """Follow the data through the region; every node must allow the states of what it reads.

    Nodes that read nothing but whole values make whole ones: they are not looked at.
    """
    graph, place = reading.graph, reading.graph.place
    states: dict[Value, State] = {}
    active: list[int] = []
    for value, factor in factors.items():
        makes = value.node in graph.node and value.node in inside
        if makes:
            active.append(place[value.node])
        else:
            states[value] = factor
        active += [place[user] for user in graph.users.get(value, ()) if user in inside]
    active = list(dict.fromkeys(active))
    queued = set(active)
    heapify(active)
    try:
        while active:
            node = graph.nodes[heappop(active)]
            for value, state in zip(node.outputs, reading.transfer(node, states, factors), strict=True):
                if value in factors and state != factors[value]:
                    raise RefusedError(node, "cannot be split along it")
                states[value] = state
                for user in graph.users.get(value, ()) if state is not None else ():
                    if user in inside and place[user] not in queued:
                        queued.add(place[user])
                        heappush(active, place[user])
        if reading.shares((node.id for node in nodes), states):
            halos(nodes, states, lambda node: reading.links[node.id])
    except RefusedError as refused:
        return refused.refusal
    except HaloError as error:
        return RefusedError(error.node, error.why).refusal
    return states


def _whole_output(
    graph: Graph, nodes: Sequence[Node], k_of: Mapping[int, int], states: Assignment
) -> Refusal | None:
    """Refuse a region that makes a whole value for others: it belongs outside."""
    for node in nodes:
        whole = () if node.is_view or k_of[node.id] else [v for v in node.outputs if states.get(v) is None]
        for value in outputs_of(graph, node, k_of) if whole else ():
            if value in whole and counts(node, value.index):
                why = f"{graph.name_of(value)} is the same in every part: it belongs outside"
                return Refusal(why, node.id)
    return None


def outputs_of(graph: Graph, node: Node, inside: Container[int]) -> Iterator[Value]:
    """Yield what a node of a region makes for those outside, or for the caller."""
    for value in node.outputs:
        if value in graph.results or any(user not in inside for user in graph.users.get(value, ())):
            yield value
