"""What is known of a graph's operators once, for all regions that are looked at in it.

Layers repeat: nodes that run the same operator on the same types are of one *kind*, and what holds for one in
some states of its values holds for all of them. So the transfer of states is followed once for each kind
and states, and looked up from then on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ops.links import Axis, Factor, Links, links_of, signature_of
from peakfold.plan.fission.dims import Joint, Vertex, joints
from peakfold.plan.fission.halos import axis_of
from peakfold.plan.fission.reach import Reach
from peakfold.plan.fission.states import Assignment, State
from peakfold.plan.fission.transfer import RefusedError, transfer

Known = tuple[int, tuple[State, ...], tuple[State, ...]]
"""A kind with states of what it reads and of what it makes."""


@dataclass(frozen=True)
class Reading:
    """A graph as regions see it.

    Attributes:
        graph: the program.
    """

    graph: Graph
    _made: dict[Known, tuple[State, ...] | str] = field(default_factory=dict, repr=False)
    _axes: dict[Known, Axis | None] = field(default_factory=dict, repr=False)
    _beside: dict[Vertex, tuple[tuple[int, Vertex], ...]] = field(default_factory=dict, repr=False)

    @cached_property
    def links(self) -> Mapping[int, Links]:
        """Links by id of the node."""
        return {node.id: links_of(self.graph, node) for node in self.graph.nodes}

    @cached_property
    def kinds(self) -> Mapping[int, int]:
        """A number for each node, by id; nodes that run the same operator on the same types have the same."""
        number: dict[object, int] = {}
        return {
            node.id: number.setdefault(signature_of(self.graph, node), len(number))
            for node in self.graph.nodes
        }

    @cached_property
    def reach(self) -> Reach:
        """Ancestors and descendants of every node."""
        return Reach.of(self.graph)

    @cached_property
    def nbytes(self) -> Mapping[Value, int]:
        """Bytes of the storage of each value that a node makes or passes on; none of the program's inputs."""
        graph = self.graph
        made = ((value, graph.storage(value)) for node in graph.nodes for value in node.outputs)
        return {value: graph.nbytes(root) for value, root in made}

    @cached_property
    def joints(self) -> Mapping[int, tuple[Joint, ...]]:
        """The axes of each node with what runs along them, by its id."""
        return {node.id: joints(self.graph, node, self.links[node.id]) for node in self.graph.nodes}

    @cached_property
    def at(self) -> Mapping[Value, tuple[Joint, ...]]:
        """The axes of nodes that run along some dimension of each value."""
        found: dict[Value, list[Joint]] = {}
        for own in self.joints.values():
            for joint in own:
                for value in dict.fromkeys(value for value, _ in joint.slots):
                    found.setdefault(value, []).append(joint)
        return {value: tuple(own) for value, own in found.items()}

    @cached_property
    def sharing(self) -> frozenset[int]:
        """Ids of the nodes that have an axis along which parts share places."""
        return frozenset(ident for ident, own in self.links.items() if any(a.has_halo for a in own.axes))

    def beside(self, vertex: Vertex) -> tuple[tuple[int, Vertex], ...]:
        """Return the factors of other values that run along an axis together with one, each with its node."""
        if vertex not in self._beside:
            value, factor = vertex
            found: dict[tuple[int, Vertex], None] = {}
            for joint in self.at.get(value, ()):
                for own, slot in joint.slots:
                    place = slot.place(factor) if own == value else None
                    if place is not None and joint.axis.allows(place):
                        found |= {
                            (joint.node.id, (other, there.within(place))): None
                            for other, there in joint.slots
                        }
            self._beside[vertex] = tuple(found)
        return self._beside[vertex]

    def transfer(
        self, node: Node, states: Mapping[Value, State], factors: Mapping[Value, Factor]
    ) -> tuple[State, ...]:
        """Return the states of a node's outputs from those of its operands, as `transfer` does.

        Raises:
            RefusedError: it cannot be done in parts in these states.
        """
        reads, wanted = states.get, factors.get
        key = (
            self.kinds[node.id],
            tuple([reads(value) for value in node.inputs]),
            tuple([wanted(value) for value in node.outputs]),
        )
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = _transferred(node, self.links[node.id], states, factors)
        if isinstance(found, str):
            raise RefusedError(node, found)
        return found

    def axis_of(self, node: Node, states: Assignment) -> Axis | None:
        """Return the axis along which a node is done in parts in these states of its values, if it is."""
        key = (
            self.kinds[node.id],
            tuple([states.get(value) for value in node.inputs]),
            tuple([states.get(value) for value in node.outputs]),
        )
        if key not in self._axes:
            self._axes[key] = axis_of(node, self.links[node.id], states)
        return self._axes[key]

    def shares(self, ids: Iterable[int], states: Assignment) -> bool:
        """Whether parts of some nodes reach beyond their own places in these states of their values."""
        axes = (self.axis_of(self.graph.node[ident], states) for ident in ids if ident in self.sharing)
        return any(axis is not None and axis.has_halo for axis in axes)

    def in_order(self, ids: Iterable[int]) -> Sequence[Node]:
        """Return some nodes in program order."""
        return [self.graph.node[ident] for ident in sorted(ids, key=self.graph.place.__getitem__)]


def _transferred(
    node: Node, links: Links, states: Mapping[Value, State], factors: Mapping[Value, Factor]
) -> tuple[State, ...] | str:
    try:
        return transfer(node, links, states, factors)
    except RefusedError as error:
        return error.why
