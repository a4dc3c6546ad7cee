"""A region grown from one place: every neighbour that can be split along with it."""

from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.regions import why_not_inside
from peakfold.ops.links import Factor, Links
from peakfold.plan.fission.assign import outputs_of
from peakfold.plan.fission.dims import Vertex
from peakfold.plan.fission.halos import HaloError, halos
from peakfold.plan.fission.reach import Reach
from peakfold.plan.fission.reading import Reading
from peakfold.plan.fission.states import Partial, State
from peakfold.plan.fission.transfer import RefusedError

MAX_DROPS = 64
SHARE = 4
"""A tensor joins what reads and makes it where it has at least one in so many of the bytes."""


UNKNOWN: Final = "unknown"
Seen = State | Literal["unknown"]
"""How a value stands in a region that grows, where that is decided."""


@dataclass(frozen=True)
class Ground:
    """A graph, and what growing needs to know of it once.

    Attributes:
        reading: of the program.
    """

    reading: Reading
    _steps: dict[tuple[int, tuple[Seen, ...]], tuple[State, ...] | None] = field(
        default_factory=dict, repr=False
    )
    _joined: dict[tuple[int, Value], frozenset[int]] = field(default_factory=dict, repr=False)

    @property
    def graph(self) -> Graph:
        """The program."""
        return self.reading.graph

    @property
    def links(self) -> Mapping[int, Links]:
        """Links by id of the node."""
        return self.reading.links

    @cached_property
    def reads(self) -> Mapping[int, tuple[Value, ...]]:
        """What each node reads, by its id."""
        return {node.id: node.inputs for node in self.graph.nodes}

    @cached_property
    def values(self) -> Mapping[int, tuple[Value, ...]]:
        """What each node reads and makes, by its id, without repeats."""
        return {node.id: tuple(dict.fromkeys((*node.inputs, *node.outputs))) for node in self.graph.nodes}

    @property
    def reach(self) -> Reach:
        """Ancestors and descendants."""
        return self.reading.reach

    @cached_property
    def never(self) -> frozenset[int]:
        """Ids of the nodes that no region may have runs of; views are decided by what is around them."""
        return frozenset(n.id for n in self.graph.nodes if not n.is_view and why_not_inside(n))

    @cached_property
    def around(self) -> Mapping[Value, tuple[int, ...]]:
        """Ids of the nodes that make or read each value."""
        made = {value: (node.id,) for node in self.graph.nodes for value in node.outputs}
        users = self.graph.users
        return {value: (*made.get(value, ()), *users.get(value, ())) for value in {**made, **users}}

    @cached_property
    def beside(self) -> Mapping[int, frozenset[int]]:
        """Ids of the nodes that make what each node reads, or read what it makes."""
        graph = self.graph
        return {
            node.id: frozenset(
                (
                    *(value.node for value in node.inputs),
                    *(user for value in node.outputs for user in graph.users.get(value, ())),
                )
            )
            for node in graph.nodes
        }

    def joined(self, value: Value) -> frozenset[int]:
        """Return the nodes that large tensors join to one: those that make or read it, and so on from theirs.

        From all tensors of one size that are joined, the same is found.
        """
        size = self.reading.nbytes[value]
        if (size, value) not in self._joined:
            nodes, tensors = _joined_by_large(self.reading, value)
            self._joined.update(dict.fromkeys(((size, other) for other in tensors), frozenset(nodes)))
        return self._joined[size, value]

    def step(self, ident: int, known: tuple[Seen, ...]) -> tuple[State, ...] | None:
        """Return how a node's values stand where it joins a region; None where it cannot.

        Args:
            ident: of the node.
            known: how each of its ``values`` stands.
        """
        key = (self.reading.kinds[ident], known)
        if key not in self._steps:
            self._steps[key] = self._step(ident, known)
        return self._steps[key]

    def _step(self, ident: int, known: tuple[Seen, ...]) -> tuple[State, ...] | None:
        node, values = self.graph.node[ident], self.values[ident]
        own: dict[Value, State] = {v: s for v, s in zip(values, known, strict=True) if s != UNKNOWN}
        wanted = self._wanted(ident, own)
        if wanted is None:
            return None
        try:
            made = self.reading.transfer(node, wanted, _factors(node, wanted))
        except RefusedError:
            return None
        if all(state is None for state in made):
            return None
        states = dict(zip(node.outputs, made, strict=True))
        if any(own.get(value, state) != state for value, state in states.items()):
            return None
        found = {value: wanted[value] for value in self.reads[ident]} | states
        return tuple(found[value] for value in values)

    def _wanted(self, ident: int, known: Mapping[Value, State]) -> dict[Value, State] | None:
        """The states in which a node reads its operands, from those of its values that are known."""
        reads = self.reads[ident]
        for joint in self.reading.joints[ident]:
            held = ((slot, known.get(value)) for value, slot in joint.slots)
            places = {slot.place(state) for slot, state in held if isinstance(state, Factor)}
            place = next(iter(places)) if len(places) == 1 else None
            if place is None:
                continue
            wanted: dict[Value, State] = {value: known.get(value) for value in reads}
            wanted |= {value: slot.within(place) for value, slot in joint.slots}
            return wanted if all(wanted[v] == known[v] for v in reads if v in known) else None
        if any(isinstance(known.get(value), Partial) for value in reads):
            return {value: known.get(value) for value in reads}
        return None


@dataclass
class Growth:
    """A region while it grows.

    Attributes:
        ground: what it grows on.
        k_of: run of each node that may be in it, by id.
        inside: nodes in it.
        states: of every value that it reads or makes.
        elsewhere: nodes of another region, which makes what ``again`` make for itself.
        again: nodes that the other region runs again.
    """

    ground: Ground
    k_of: Mapping[int, int]
    inside: set[int] = field(default_factory=set)
    states: dict[Value, State] = field(default_factory=dict)
    elsewhere: Set[int] = frozenset()
    again: Set[int] = frozenset()

    def grow(self, anchor: Vertex) -> None:
        """Add all that can be split along with one factor, what is nearest first."""
        self.states[anchor[0]] = anchor[1]
        waiting = deque(self._near(anchor[0]))
        queued = set(waiting)
        tried: dict[int, tuple[Seen, ...]] = {}
        values, own, step, never = self.ground.values, self.states, self.ground.step, self.ground.never
        while waiting:
            ident = waiting.popleft()
            queued.discard(ident)
            known: tuple[Seen, ...] = tuple([own.get(value, UNKNOWN) for value in values[ident]])
            if tried.get(ident) == known or ident in never:
                continue
            tried[ident] = known
            states = step(ident, known)
            if states is None:
                continue
            own.update(zip(values[ident], states, strict=True))
            self.inside.add(ident)
            for value, state in zip(values[ident], states, strict=True):
                for other in self._near(value) if state is not None else ():
                    if other not in queued:
                        queued.add(other)
                        if other not in self.inside:
                            waiting.append(other)

    def _near(self, value: Value) -> list[int]:
        return [ident for ident in self.ground.around.get(value, ()) if ident in self.k_of]

    def settle(self, anchor: int) -> None:
        """Drop what keeps it from being a region: the part around one node stays."""
        suspects = set(self.inside)
        for _ in range(MAX_DROPS):
            drop = self._between(anchor)
            if not drop:
                drop, suspects = self._useless(suspects), set()
            if not drop:
                drop = self._apart_from(anchor)
            if not drop:
                return
            self.inside -= drop
            for ident in drop:
                suspects |= self.ground.beside[ident]
            suspects &= self.inside

    def share(self, anchor: int) -> None:
        """Drop what would have to work on more than its part, and cannot; the part around one node stays."""
        reading = self.ground.reading
        for _ in range(MAX_DROPS):
            if not reading.shares(self.inside, self.states):
                return
            nodes = reading.in_order(self.inside)
            try:
                halos(nodes, self.states, lambda node: self.ground.links[node.id])
            except HaloError as error:
                self.inside.discard(error.node.id)
                self.settle(anchor)
            else:
                return
        self.inside.clear()

    def first(self) -> list[int]:
        """Return the nodes of which it has run 0."""
        return [ident for ident in self.inside if not self.k_of[ident]]

    def _between(self, anchor: int) -> set[int]:
        """Nodes to drop because something outside must run between them."""
        reach = self.ground.reach
        first = self.first()
        after = reach.descendants(first) & ~reach.mask(first)
        outside = {
            value.node
            for ident in self.inside
            for value in self.ground.reads[ident]
            if value.node in reach.place and value.node not in self.inside
        }
        bad = sorted(ident for ident in outside if after >> reach.place[ident] & 1)
        if not bad:
            return set()
        return self._apart(bad, anchor)

    def _apart_from(self, anchor: int) -> set[int]:
        """Nodes that no chain of values made inside joins to the anchor."""
        seen, waiting = {anchor}, [anchor]
        while waiting:
            fresh = (self.ground.beside[waiting.pop()] & self.inside) - seen
            seen |= fresh
            waiting += fresh
        return self.inside - seen

    def _apart(self, bad: list[int], anchor: int) -> set[int]:
        reach = self.ground.reach
        at = reach.place[anchor]
        dropped = 0
        mine = reach.mask(self.inside)
        for ident in bad:
            place = reach.place[ident]
            earlier, later = reach.before[place] & mine, reach.after[place] & mine
            if place != at and reach.before[at] >> place & 1:
                dropped |= earlier
            elif reach.after[at] >> place & 1:
                dropped |= later
            else:
                dropped |= earlier if earlier.bit_count() <= later.bit_count() else later
        return set(reach.members(dropped))

    def _useless(self, suspects: Set[int]) -> set[int]:
        """Nodes that read a sum of parts from outside, make what nothing reads, or a whole for others.

        Args:
            suspects: nodes that may be; of the others it is known that they are not.
        """
        graph = self.ground.graph
        drop: set[int] = set()
        for ident in suspects:
            node = graph.node[ident]
            if any(isinstance(self.states[v], Partial) and v.node not in self.inside for v in node.inputs):
                drop.add(ident)
            elif self.k_of[ident]:
                if all(self.inside.isdisjoint(graph.users.get(v, ())) for v in node.outputs):
                    drop.add(ident)
            elif not node.is_view and any(self.states[value] is None for value in node.outputs):
                outs = self.outputs(node)
                if any(self.states[value] is None and _has_elements(graph, value) for value in outs):
                    drop.add(ident)
        return drop | self._loose_views(suspects)

    def outputs(self, node: Node) -> Iterator[Value]:
        """Yield what a node makes for those outside."""
        inside = self.inside | self.elsewhere if node.id in self.again else self.inside
        return outputs_of(self.ground.graph, node, inside)

    def _loose_views(self, suspects: Set[int]) -> set[int]:
        """Views that no node of the region is before, or none after."""
        graph = self.ground.graph
        drop: set[int] = set()
        for ident in suspects:
            node = graph.node[ident]
            if not node.is_view:
                continue
            before = any(value.node in self.inside for value in node.inputs)
            if not before or not any(
                not self.inside.isdisjoint(graph.users.get(v, ())) for v in node.outputs
            ):
                drop.add(ident)
        return drop


def _joined_by_large(reading: Reading, value: Value) -> tuple[set[int], set[Value]]:
    graph, nbytes = reading.graph, reading.nbytes
    least = nbytes[value] // SHARE
    found: set[int] = set()
    waiting, seen = [value], {value}
    while waiting:
        item = waiting.pop()
        for ident in (*graph.users.get(item, ()), *([item.node] if item in nbytes else ())):
            node = graph.node[ident]
            if ident in found or node.origin.phase == "update":
                continue
            found.add(ident)
            values = (*node.inputs, *node.outputs)
            large = [v for v in values if nbytes.get(v, 0) >= least and v not in seen]
            seen.update(large)
            waiting += large
    return found, seen


def _factors(node: Node, states: Mapping[Value, State]) -> dict[Value, Factor]:
    found = ((value, states.get(value)) for value in node.outputs)
    return {value: state for value, state in found if isinstance(state, Factor)}


def _has_elements(graph: Graph, value: Value) -> bool:
    return graph.tensor_type(value).numel > 0


def steps(graph: Graph, ids: set[int]) -> Iterator[int]:
    """Yield those of some nodes that are runs: neither views nor numbers of the host, in program order."""
    return (node.id for node in graph.nodes if node.id in ids and not node.is_view and not node.is_host)
