"""From the states of what a node reads to those of what it makes, or why it cannot be done in parts."""

from collections.abc import Mapping
from dataclasses import dataclass

from peakfold.ir.graph import Node, Value
from peakfold.ops.links import Axis, Factor, Links
from peakfold.plan.fission.states import Partial, State


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
        self.why = why
        self.refusal = Refusal(f"{node.name} ({node.op.name}) {why}", node.id)


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
    lacking = [index for index, state in enumerate(outputs) if state is None and counts(node, index)]
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
    return tuple(Partial(combine) if counts(node, index) else None for index in range(len(node.types)))


def counts(node: Node, index: int) -> bool:
    """Whether an output is a tensor with elements."""
    kind = node.types[index]
    return 0 not in getattr(kind, "shape", (0,))
