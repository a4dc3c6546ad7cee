"""How each value stands in one region: whole, split, or a partial result; or why it is no region."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.plan import Run
from peakfold.ops.links import Axis, Factor, Links, links_of
from peakfold.plan.fission.dims import Component, Joint, Vertex, joints
from peakfold.plan.fission.halos import HaloError, halos
from peakfold.plan.fission.states import Assignment, Partial, State

WIDEST = 8
"""Pieces of an axis that are tried, without an anchor."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a region cannot be done in parts.

    Attributes:
        why: the reason, one clause.
        node: id of the node at which it fails; None where it is the region as a whole.
    """

    why: str
    node: int | None = None


class RefusedError(Exception):
    """A node cannot be done in parts in these states."""

    def __init__(self, node: Node, why: str) -> None:
        super().__init__(why)
        self.refusal = Refusal(f"{node.name} ({node.op.name}) {why}", node.id)


def assign(
    graph: Graph, runs: Iterable[Run], component: Component, anchor: Vertex | None = None
) -> Assignment | Refusal:
    """Return the state of every value that a region reads or makes, or why the region is none.

    Inside a region an axis may fall apart: rows of the queries and rows of the keys come from one sequence,
    but one region splits only one of them. Without an anchor, the piece that most values have comes first.

    Args:
        graph: the program.
        runs: the region.
        component: the axis that it is to be split along.
        anchor: a value of the region and the factor along which it is to be split.
    """
    k_of = {run.node: run.k for run in runs}
    nodes = [node for node in graph.nodes if node.id in k_of]
    links = {node.id: links_of(graph, node) for node in nodes}
    touched = {value for node in nodes for value in (*node.inputs, *node.outputs)}
    seeds = [member for member in component.members if member[0] in touched]
    seeds = seeds if anchor is None else [anchor, *(seed for seed in seeds if seed != anchor)]
    if not seeds:
        return Refusal(f"nothing in the region runs along {component.name}")
    first: Refusal | None = None
    for factors in _candidates(graph, nodes, links, seeds, anchor is not None):
        found = _checked(graph, nodes, links, factors)
        why = found if isinstance(found, Refusal) else _whole_output(graph, nodes, k_of, found)
        if why is None and not isinstance(found, Refusal):
            return found
        first = first or why
    return first or _twice(graph, nodes, links, seeds)


def _candidates(
    graph: Graph,
    nodes: list[Node],
    links: Mapping[int, Links],
    seeds: list[Vertex],
    anchored: bool,
) -> Iterator[dict[Value, Factor]]:
    """Yield ways to split values: the widest piece with all others that agree with it, then each alone.

    Where the first seed is an anchor, its piece alone counts as the widest.
    """
    at = _joints_at(graph, nodes, links)
    pieces: list[dict[Value, Factor]] = []
    seen: set[Vertex] = set()
    for seed in seeds:
        if seed not in seen:
            vertices = _piece(at, seed)
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


def _joints_at(graph: Graph, nodes: list[Node], links: Mapping[int, Links]) -> dict[Value, list[Joint]]:
    found: dict[Value, list[Joint]] = {}
    for node in nodes:
        for joint in joints(graph, node, links[node.id]):
            for value in dict.fromkeys(value for value, _ in joint.slots):
                found.setdefault(value, []).append(joint)
    return found


def _twice(graph: Graph, nodes: list[Node], links: Mapping[int, Links], seeds: list[Vertex]) -> Refusal:
    """Say which value would have to be split along two of its factors at once."""
    vertices = sorted(_piece(_joints_at(graph, nodes, links), seeds[0]))
    for (value, factor), (other, second) in pairwise(vertices):
        if value == other:
            dims = f"dimensions {factor.dim} and {second.dim}" if factor.dim != second.dim else "two factors"
            return Refusal(f"{graph.name_of(value)} runs along it twice, in {dims}")
    return Refusal("nothing of the region can be split along it")


def _joined(piece: dict[Value, Factor], others: list[dict[Value, Factor]]) -> dict[Value, Factor]:
    found = dict(piece)
    for other in others:
        if all(found.get(value, factor) == factor for value, factor in other.items()):
            found |= other
    return found


def _piece(at: Mapping[Value, list[Joint]], seed: Vertex) -> set[Vertex]:
    """Every factor that must be split where one is."""
    found = {seed}
    waiting = [seed]
    while waiting:
        value, factor = waiting.pop()
        for joint in at.get(value, ()):
            for other in _beside(joint, value, factor):
                if other not in found:
                    found.add(other)
                    waiting.append(other)
    return found


def _beside(joint: Joint, value: Value, factor: Factor) -> Iterator[Vertex]:
    """The factors of other values that run along an axis together with one."""
    for own, slot in joint.slots:
        place = slot.place(factor) if own == value else None
        if place is not None and joint.axis.allows(place):
            yield from ((other, there.within(place)) for other, there in joint.slots)


def _checked(
    graph: Graph, nodes: list[Node], links: Mapping[int, Links], factors: Mapping[Value, Factor]
) -> Assignment | Refusal:
    """Follow the data through the region; every node must allow the states of what it reads."""
    states: dict[Value, State] = {}
    made = {value for node in nodes for value in node.outputs}
    try:
        for node in nodes:
            for value in node.inputs:
                if value not in made:
                    states.setdefault(value, factors.get(value))
            _set_outputs(node, links[node.id], states, factors)
        if any(axis.has_halo for node in nodes for axis in links[node.id].axes):
            halos(nodes, states, lambda node: links[node.id])
    except RefusedError as refused:
        return refused.refusal
    except HaloError as error:
        return RefusedError(error.node, error.why).refusal
    return states


def _set_outputs(
    node: Node, links: Links, states: dict[Value, State], factors: Mapping[Value, Factor]
) -> None:
    found = transfer(node, links, states, factors)
    for value, state in zip(node.outputs, found, strict=True):
        if isinstance(factors.get(value), Factor) and state != factors[value]:
            raise RefusedError(node, "cannot be split along it")
        states[value] = state


def transfer(
    node: Node, links: Links, states: Mapping[Value, State], factors: Mapping[Value, Factor]
) -> tuple[State, ...]:
    """Return the states of a node's outputs from those of its operands.

    Args:
        node: the node.
        links: what it allows.
        states: of its operands.
        factors: wanted of outputs whose axis no operand has.
    """
    operands = [
        None if index in links.unread else states.get(value) for index, value in enumerate(node.inputs)
    ]
    split = any(isinstance(state, Factor) for state in operands)
    if split or any(value in factors for value in node.outputs):
        if node.op.random:
            raise RefusedError(node, "draws random numbers: it is drawn whole, outside")
        return _split(node, links, operands, factors)
    if any(isinstance(state, Partial) for state in operands):
        return _partial(node, links, operands)
    return tuple(None for _ in node.types)


def _split(
    node: Node, links: Links, operands: list[State], factors: Mapping[Value, Factor]
) -> tuple[State, ...]:
    for axis in links.axes:
        place = _place_of(axis, node, operands, factors)
        if place is not None and (axis.carry is None or place.outer == 1):
            return _along(node, links, axis, place, operands)
    raise RefusedError(node, "cannot be split along it")


def _place_of(
    axis: Axis, node: Node, operands: list[State], factors: Mapping[Value, Factor]
) -> Factor | None:
    """Where along an axis the split operands (or the wanted outputs) lie; None where it is another axis."""
    found: set[Factor | None] = set()
    covered = 0
    for slot in axis.operands:
        state = operands[slot.index]
        if isinstance(state, Factor):
            found.add(slot.factor.place(state))
            covered += 1
    if covered != sum(isinstance(state, Factor) for state in operands):
        return None
    if not covered:
        wanted = ((slot, factors.get(node.outputs[slot.index])) for slot in axis.outputs)
        found = {slot.factor.place(state) for slot, state in wanted if state is not None}
    place = next(iter(found)) if len(found) == 1 else None
    return place if place is not None and axis.allows(place) else None


def _along(node: Node, links: Links, axis: Axis, place: Factor, operands: list[State]) -> tuple[State, ...]:
    having = {slot.index for slot in axis.operands}
    partial = {index for index, state in enumerate(operands) if isinstance(state, Partial)}
    if any(not isinstance(operands[index], Factor) for index in having):
        raise RefusedError(node, "reads whole what it should read in parts")
    if partial - links.added:
        raise RefusedError(node, "needs a sum that is complete only after the last part")
    outputs: list[State] = [None] * len(node.types)
    for slot in axis.outputs:
        outputs[slot.index] = slot.factor.within(place)
    lacking = [index for index, state in enumerate(outputs) if state is None and _counts(node, index)]
    lacking = [index for index in lacking if index not in axis.same]
    if lacking and axis.combine is None:
        raise RefusedError(node, "couples the parts")
    if (lacking or partial) and not links.added <= partial:
        raise RefusedError(node, "adds a whole operand to a sum over the parts")
    if partial and not lacking:
        raise RefusedError(node, "needs a sum that is complete only after the last part")
    for index in lacking:
        outputs[index] = Partial(axis.combine or "sum")
    return tuple(outputs)


def _partial(node: Node, links: Links, operands: list[State]) -> tuple[State, ...]:
    held = frozenset(index for index, state in enumerate(operands) if isinstance(state, Partial))
    combines = {state.combine for state in operands if isinstance(state, Partial)}
    passes = held in links.linear and (combines == {"sum"} or (links.moves and len(combines) == 1))
    if not passes:
        raise RefusedError(node, "needs a sum that is complete only after the last part")
    combine = next(iter(combines))
    return tuple(Partial(combine) if _counts(node, index) else None for index in range(len(node.types)))


def _counts(node: Node, index: int) -> bool:
    """Whether an output is a tensor with elements."""
    kind = node.types[index]
    return 0 not in getattr(kind, "shape", (0,))


def _whole_output(
    graph: Graph, nodes: list[Node], k_of: Mapping[int, int], states: Assignment
) -> Refusal | None:
    """Refuse a region that makes a whole value for others: it belongs outside."""
    for node in nodes:
        for value in () if node.is_view or k_of[node.id] else outputs_of(graph, node, k_of):
            if states[value] is None and _counts(node, value.index):
                why = f"{graph.name_of(value)} is the same in every part: it belongs outside"
                return Refusal(why, node.id)
    return None


def outputs_of(graph: Graph, node: Node, inside: Container[int]) -> Iterator[Value]:
    """Yield what a node of a region makes for those outside, or for the caller."""
    for value in node.outputs:
        if value in graph.results or any(user not in inside for user in graph.users.get(value, ())):
            yield value
