"""Values that a part hands to the next one: the last place of a running sum, product or logsumexp."""

from dataclasses import dataclass, replace

from peakfold.ir.graph import Graph, Input, Node, Op, State, Value
from peakfold.ir.types import TensorType, contiguous_strides
from peakfold.ops.links import Combine, links_of
from peakfold.plan.fission.borders import COMBINES, COPY, ORIGIN, Names, resized, view_node
from peakfold.plan.fission.states import Assignment, Factor

END = 2**63 - 1
"""The end of a dimension, as a slice says it."""


@dataclass(frozen=True)
class Carried:
    """A node of a part that goes on where the part before ended.

    Attributes:
        nodes: what stands for it.
        whole: makes what the node makes in the whole.
        given: the input that holds what is carried.
        how: what it is combined with, and begins as what changes nothing of.
        state: the pair of what is carried and its new value.
    """

    nodes: tuple[Node, ...]
    whole: Node
    given: Input
    how: Combine
    state: State


def carry_of(graph: Graph, node: Node, states: Assignment) -> tuple[Combine, int] | None:
    """Return how a node goes on from part to part, and along which dimension; None where it does not."""
    state = states.get(Value(node.id))
    if not isinstance(state, Factor):
        return None
    for axis in links_of(graph, node).axes:
        along = axis.carry is not None and any(slot.factor.place(state) for slot in axis.outputs)
        if along and axis.carry is not None:
            return axis.carry, state.dim
    return None


def carried(names: Names, node: Node, how: Combine, dim: int) -> Carried:
    """Return what stands for a node of a part, whose id and name go to what it comes to in the whole.

    Args:
        names: fresh ids and names.
        node: as it is in a part.
        how: what is carried is combined with the part.
        dim: the split dimension.
    """
    kind = node.types[0]
    assert isinstance(kind, TensorType)
    own = replace(node, id=names.id(), name=names.name(f"{node.name}.own"))
    shape = resized(kind, dim, 1).shape
    row = replace(kind, shape=shape, strides=contiguous_strides(shape))
    given = Input(names.id(), names.name(f"{node.name}.carried"), "buffer", row)
    whole = replace(node, op=Op(COMBINES[how]), args=(Value(own.id), Value(given.id)), kwargs=())
    last = view_node(
        names, f"{node.name}.last", "aten.slice.Tensor", (Value(node.id), dim, -1, END), resized(kind, dim, 1)
    )
    ident, name = names.id(), names.name(f"{node.name}.carry")
    kept = Node(ident, name, Op(COPY), (Value(given.id), Value(last.id)), (), (row,), (None,), None, ORIGIN)
    return Carried((own, whole, last, kept), whole, given, how, State(given.id, Value(ident)))
