"""How far beyond a part its values must reach: what neighbours share is computed by both of them.

A convolution of rows ``[a, b)`` reads rows beyond them. Where these are made in the same region, whatever
makes them works on more than its part as well, and so on up to what the region reads from outside.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from peakfold.ir.graph import Node, Value
from peakfold.ops.links import Axis, Factor, Links, Slot
from peakfold.plan.fission.states import Assignment, Margin

FIXED = frozenset({"repeat", "new_empty_strided", "empty_strided", "empty_permuted"})
"""Operators whose arguments hold for a part without margins only."""

NO_MARGIN = Margin()


class HaloError(Exception):
    """A node cannot work on more than its part."""

    def __init__(self, node: Node, why: str) -> None:
        super().__init__(why)
        self.node = node
        self.why = why


@dataclass(frozen=True)
class Use:
    """How a node is done in parts.

    Attributes:
        axis: the axis along which it is.
        margin: how many places of the axis it works on beyond its part.
    """

    axis: Axis
    margin: Margin


@dataclass
class Halos:
    """Margins of the values and nodes of one region; a value that is not named has none.

    Attributes:
        values: by Value, in places of the split dimension.
        uses: by id of the node.
    """

    values: dict[Value, Margin] = field(default_factory=dict)
    uses: dict[int, Use] = field(default_factory=dict)

    def of(self, value: Value) -> Margin:
        """Return the margin of a value."""
        return self.values.get(value, NO_MARGIN)

    @property
    def even(self) -> bool:
        """Whether no value reaches beyond its part."""
        return not self.values


def halos(nodes: Sequence[Node], states: Assignment, links_of: Callable[[Node], Links]) -> Halos:
    """Return how far the values of a region reach beyond a part.

    Args:
        nodes: the region's, views included, in program order.
        states: of every value that it reads or makes.
        links_of: gives the links of a node.

    Raises:
        HaloError: a node would have to work on more than its part, and cannot.
    """
    found = Halos()
    for node in reversed(nodes):
        axis = axis_of(node, links_of(node), states)
        if axis is None:
            continue
        margin = _own(node, axis, states, found)
        found.uses[node.id] = Use(axis, margin)
        for slot in axis.operands:
            value = node.inputs[slot.index]
            needed = _read(slot, margin)
            if needed != NO_MARGIN:
                _require_outermost(node, states[value])
                found.values[value] = found.of(value).joined(needed)
    return found


def axis_of(node: Node, links: Links, states: Assignment) -> Axis | None:
    """Return the axis along which a node is done in parts in these states of its values, if it is."""
    split = sum(isinstance(states.get(v), Factor) for k, v in enumerate(node.inputs) if k not in links.unread)
    for axis in links.axes:
        slots = axis.operands if split else axis.outputs
        values = node.inputs if split else node.outputs
        places = {place_of(slot, states.get(values[slot.index])) for slot in slots}
        if len(slots) == (split or len(slots)) and len(places) == 1 and places != {None}:
            return axis
    return None


def place_of(slot: Slot, state: object) -> Factor | None:
    """Return where along the axis of a slot a value is split."""
    return slot.factor.place(state) if isinstance(state, Factor) else None


def _own(node: Node, axis: Axis, states: Mapping[Value, object], found: Halos) -> Margin:
    """Places of the axis that a node must make beyond its part for those that read what it makes."""
    margin = NO_MARGIN
    for slot in axis.outputs:
        margin = margin.joined(found.of(node.outputs[slot.index]).over(slot.factor.inner))
    if margin == NO_MARGIN:
        return margin
    if axis.carry is not None:
        raise HaloError(
            node, "goes on from part to part, and a neighbour needs what it makes beyond the part"
        )
    placed = axis.same | {slot.index for slot in axis.outputs}
    for value, kind in zip(node.outputs, node.types, strict=True):
        if value.index not in placed and 0 not in getattr(kind, "shape", (0,)):
            raise HaloError(node, "makes a sum, and a neighbour needs what it makes beyond the part")
        _require_outermost(node, states.get(value))
    if node.op.packet in FIXED:
        raise HaloError(node, "makes no more than the part, of which a neighbour needs more")
    for slot in axis.outputs:
        found.values[node.outputs[slot.index]] = margin.times(slot.factor.inner)
    return margin


def _read(slot: Slot, margin: Margin) -> Margin:
    needed = margin.times(slot.factor.inner)
    return needed if slot.halo is None else needed.plus(slot.halo.before, slot.halo.after)


def _require_outermost(node: Node, state: object) -> None:
    if isinstance(state, Factor) and state.outer > 1:
        raise HaloError(node, "needs neighbours, and what it reads is split inside a dimension")
