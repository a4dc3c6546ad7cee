"""The dimension graph: which dimensions of which values run over one axis of a program [MAGIS, section 4.1].

A vertex is a factor of a dimension. Views regroup factors, so the dimensions of all values are first cut at
the places where some view cuts them (the common refinement); then factors that an operator runs over
together are joined, whichever way the data flows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.types import TensorType
from peakfold.ops.links import Axis, Factor, Links, links_of
from peakfold.plan.fission.names import words

Place = tuple[Value, int]
Vertex = tuple[Value, Factor]


@dataclass(frozen=True, slots=True)
class Component:
    """An axis of the program.

    Attributes:
        name: in the user's words where they are known; unique in the graph.
        length: its places.
        members: every factor of every value that runs over it, in program order.
        nodes: how many nodes work along it.
        nbytes: bytes of all storages that have it.
        shares: whether parts of some operator share places at their borders, as rows of a convolution do.
    """

    name: str
    length: int
    members: tuple[Vertex, ...]
    nodes: int
    nbytes: int
    shares: bool = False

    @property
    def finest(self) -> int:
        """Most places that a value has along it: rows of the largest image, say."""
        own = (f.length * f.inner for _, f in self.members if f.outer == 1)
        return max(own, default=self.length) if self.shares else self.length


@dataclass(frozen=True, slots=True)
class Joint:
    """One axis of one node, with the Values that have it."""

    node: Node
    axis: Axis
    slots: tuple[tuple[Value, Factor], ...]


def joints(graph: Graph, node: Node, links: Links | None = None) -> tuple[Joint, ...]:
    """Return the axes of a node, each with the factors of the Values that have it."""
    found = links_of(graph, node) if links is None else links
    inputs, outputs = node.inputs, node.outputs
    return tuple(Joint(node, axis, tuple(_places(axis, inputs, outputs))) for axis in found.axes)


def _places(
    axis: Axis, inputs: tuple[Value, ...], outputs: tuple[Value, ...]
) -> Iterator[tuple[Value, Factor]]:
    for slots, values in ((axis.operands, inputs), (axis.outputs, outputs)):
        for slot in slots:
            yield values[slot.index], slot.factor


def factored(graph: Graph, joined: tuple[Joint, ...]) -> dict[Place, list[int]]:
    """Return where each dimension is cut: products of the factors from its end, 1 and its length included."""
    cuts = _uncut(graph)
    at: dict[Place, list[int]] = {}
    for index, joint in enumerate(joined):
        for value, factor in joint.slots:
            at.setdefault((value, factor.dim), []).append(index)
    waiting = list(dict.fromkeys(reversed(range(len(joined)))))
    queued = set(waiting)
    while waiting:
        index = waiting.pop()
        queued.discard(index)
        for place in _refine(cuts, joined[index]):
            fresh = [other for other in at[place] if other not in queued and other != index]
            waiting += fresh
            queued.update(fresh)
    return cuts


def _uncut(graph: Graph) -> dict[Place, list[int]]:
    found: dict[Place, list[int]] = {}
    values = [Value(given.id) for given in graph.inputs]
    for value in values + [value for node in graph.nodes for value in node.outputs]:
        kind = graph.type(value)
        if isinstance(kind, TensorType):
            for dim, length in enumerate(kind.shape):
                if length > 1:
                    found[value, dim] = [1, length]
    return found


def _refine(cuts: dict[Place, list[int]], joint: Joint) -> list[Place]:
    """Cut every dimension of an axis where one of them is cut; return the dimensions that changed."""
    inner: set[int] = set()
    for value, factor in joint.slots:
        own = cuts[value, factor.dim]
        if len(own) > 2 or factor.outer > 1 or factor.inner > 1:
            end = factor.inner * factor.length
            inner.update(
                cut // factor.inner for cut in own if factor.inner <= cut <= end and not cut % factor.inner
            )
            inner.update((1, factor.length))
    changed = []
    for value, factor in joint.slots if inner else ():
        own = cuts[value, factor.dim]
        new = [cut * factor.inner for cut in sorted(inner) if cut * factor.inner not in own]
        fits = [cut for cut in new if all(not cut % c if c < cut else not c % cut for c in own)]
        if fits:
            cuts[value, factor.dim] = _chain(own, fits)
            changed.append((value, factor.dim))
    return changed


def _chain(own: list[int], new: list[int]) -> list[int]:
    """Add cuts one by one, each only where it and all others divide one another."""
    found = list(own)
    for cut in new:
        if all(not cut % c if c < cut else not c % cut for c in found):
            found.append(cut)
    return sorted(found)


def factors_of(cuts: Mapping[Place, list[int]], place: Place) -> list[Factor]:
    """Return the factors of a dimension, the outermost first."""
    own = cuts.get(place, [])
    total = own[-1] if own else 1
    pairs = list(pairwise(own))
    return [Factor(place[1], total // high, high // low, low) for low, high in reversed(pairs)]


@dataclass(frozen=True, slots=True)
class Group:
    """Vertices of one axis, in program order; ``shares`` as in `Component`."""

    members: list[Vertex]
    shares: bool


def groups(graph: Graph, links: Mapping[int, Links] | None = None) -> list[Group]:
    """Return the vertices of the dimension graph, those of one axis together, in program order.

    Of a dimension whose neighbours share places only the outermost factor is an axis.
    """
    known = links or {}
    joined = tuple(joint for node in graph.nodes for joint in joints(graph, node, known.get(node.id)))
    cuts = factored(graph, joined)
    vertices = [(place[0], factor) for place in cuts for factor in factors_of(cuts, place)]
    number = {vertex: index for index, vertex in enumerate(vertices)}
    parent = list(range(len(vertices)))
    for joint in joined:
        for row in _rows(cuts, joint):
            _union(parent, [number[vertex] for vertex in row])
    found: dict[int, list[Vertex]] = {}
    for index, vertex in enumerate(vertices):
        found.setdefault(_root(parent, index), []).append(vertex)
    shared = {_root(parent, number[vertex]) for vertex in _sharing(cuts, joined)}
    taken = {(value, factor.dim) for root in shared for value, factor in found[root] if factor.outer == 1}
    return [
        Group(members, root in shared)
        for root, members in found.items()
        if root in shared or not any((value, factor.dim) in taken for value, factor in members)
    ]


def _sharing(cuts: Mapping[Place, list[int]], joined: tuple[Joint, ...]) -> Iterator[Vertex]:
    """Yield the vertices at which parts share places."""
    for joint in joined:
        if joint.axis.has_halo:
            value, slot = joint.slots[0]
            yield value, factors_of(cuts, (value, slot.dim))[0]


def _rows(cuts: Mapping[Place, list[int]], joint: Joint) -> list[list[Vertex]]:
    """The vertices of one axis that lie at the same places of it."""
    rows: dict[Factor, list[Vertex]] = {}
    for value, slot in joint.slots:
        if len(cuts[value, slot.dim]) == 2 and slot.outer == slot.inner == 1:
            rows.setdefault(Factor(0, 1, slot.length, 1), []).append((value, slot))
            continue
        for factor in factors_of(cuts, (value, slot.dim)):
            place = slot.place(factor)
            if place is not None and joint.axis.allows(place):
                rows.setdefault(place, []).append((value, factor))
    return list(rows.values())


def _root(parent: list[int], index: int) -> int:
    while parent[index] != index:
        parent[index] = parent[parent[index]]
        index = parent[index]
    return index


def _union(parent: list[int], members: list[int]) -> None:
    first = _root(parent, members[0])
    for member in members[1:]:
        other = _root(parent, member)
        low, high = (first, other) if first < other else (other, first)
        parent[high] = low
        first = low


def components(graph: Graph, links: Mapping[int, Links] | None = None) -> tuple[Component, ...]:
    """Return the axes that a program can be split along, those of most bytes first.

    Args:
        graph: the program.
        links: of its nodes, by their ids, where they are at hand.

    Example:
        >>> from peakfold.ir.graph import Input, Op
        >>> from peakfold.ir.types import tensor
        >>> inputs = (Input(0, "x", "batch", tensor(8, 3)), Input(1, "fc.w", "parameter", tensor(3, 2)))
        >>> mm = Node(2, "mm", Op("aten.mm.default"), (Value(0), Value(1)), (), (tensor(8, 2),), (None,))
        >>> [(c.name, c.length, c.nodes) for c in components(Graph(inputs, (mm,), ()))]
        [('batch', 8, 1), ('features of x', 3, 1), ('inputs of fc', 2, 1)]
    """
    said = words(graph)
    taken: set[str] = set()
    sized = [(_reach(graph, group.members), group) for group in groups(graph, links)]
    found = []
    for (nodes, nbytes), group in sorted(sized, key=lambda item: -item[0][1]):
        members = group.members
        if nodes:
            name = _unique(said(members), _module(graph, members), taken)
            found.append(Component(name, members[0][1].length, tuple(members), nodes, nbytes, group.shares))
    return tuple(found)


def _reach(graph: Graph, members: list[Vertex]) -> tuple[int, int]:
    """Nodes that read or make the members, and bytes of their storages."""
    nodes: set[int] = set()
    for value, _ in members:
        nodes.update(graph.users.get(value, ()))
        if value.node in graph.node:
            nodes.add(value.node)
    storages = {graph.storage(value) for value, _ in members}
    return len(nodes), sum(graph.nbytes(storage) for storage in storages)


def _module(graph: Graph, members: list[Vertex]) -> str:
    """The module that makes the first member, where one does."""
    made = (graph.node[value.node].origin.module for value, _ in members if value.node in graph.node)
    return next((module for module in made if module), "")


def _unique(name: str, module: str, taken: set[str]) -> str:
    """A name of its own: with the module where the name alone is taken, then with a number."""
    named = f"{name} of {module}" if module and " of " not in name else name
    unique, count = name if name not in taken else named, 1
    while unique in taken:
        count += 1
        unique = f"{named} ({count})"
    taken.add(unique)
    return unique
