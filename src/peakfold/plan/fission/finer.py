"""How finely a region can be split: what it has of an axis may have more places than the axis itself.

Rows of an image are counted by the coarsest of its sizes in the whole program; a region of the finest size
alone can have as many parts as that has rows.
"""

from collections.abc import Iterable
from math import gcd

from peakfold.ops.links import Factor
from peakfold.plan.fission.dims import Component
from peakfold.plan.fission.halos import place_of
from peakfold.plan.fission.reading import Reading
from peakfold.plan.fission.states import Assignment, State


def times(ids: Iterable[int], states: Assignment, reading: Reading, component: Component) -> int:
    """Return how many places of a region there are for each of its axis; 1 where neighbours share nothing.

    Args:
        ids: of the region's nodes, views included.
        states: of every value that it reads or makes.
        reading: of the graph.
        component: the axis.
    """
    if not component.shares:
        return 1
    found = 0
    for node in (reading.graph.node[ident] for ident in ids):
        axis = reading.axis_of(node, states)
        slots = () if axis is None else (*axis.operands, *axis.outputs)
        values = (*node.inputs, *node.outputs)
        offset = len(axis.operands) if axis is not None else 0
        for at, slot in enumerate(slots):
            value = values[slot.index + (len(node.inputs) if at >= offset else 0)]
            place = place_of(slot, states.get(value))
            found = gcd(found, place.inner if place is not None and place.outer == 1 else 1)
    return max(found, 1)


def finer(states: Assignment, by: int) -> Assignment:
    """Return the states of values split more finely.

    Example:
        >>> from peakfold.ir.graph import Value
        >>> finer({Value(0): Factor(2, 1, 4, 8), Value(1): None}, 4)
        {Value(node=0, index=0): Factor(dim=2, outer=1, length=16, inner=2), Value(node=1, index=0): None}
    """
    return {value: _finer(state, by) for value, state in states.items()}


def _finer(state: State, by: int) -> State:
    if not isinstance(state, Factor):
        return state
    return Factor(state.dim, state.outer, state.length * by, state.inner // by)
