"""The graph of one part of a region."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Input, Node, State, Value, substitute
from peakfold.ir.plan import Region
from peakfold.ir.types import ScalarType, TensorType, Type
from peakfold.ops.links import links_of
from peakfold.ops.strides import reads_strides
from peakfold.plan.fission.accumulate import accumulated
from peakfold.plan.fission.borders import Names, NumberOf, Place, combined, placed, sliced
from peakfold.plan.fission.carries import Carried, carried, carry_of
from peakfold.plan.fission.derived import WHOLE, Assigned, Initial, Number
from peakfold.plan.fission.fitted import Fitted
from peakfold.plan.fission.halos import HaloError, Halos, halos
from peakfold.plan.fission.states import Assignment, Combine, Factor, Part, Partial

WITHOUT = "split it into another number of parts, or take it out of the plan"

PartOf = Callable[[Graph, Node, Assignment, Part], Node]
"""Gives a node as it is in a part: the same id, with the sizes of the part."""

INITIAL: Mapping[Combine, Initial] = {
    "sum": "zeros",
    "any": "zeros",
    "prod": "ones",
    "all": "ones",
    "max": "lowest",
    "logaddexp": "lowest",
    "min": "highest",
}
"""What changes nothing when it is combined with a part."""


@dataclass(frozen=True)
class Built:
    """A body's graph, and its inputs by what they are; ``carried``: types of the results after those made."""

    graph: Graph
    operands: tuple[int, ...]
    results: tuple[int, ...]
    initial: tuple[Initial, ...]
    numbers: tuple[Number, ...]
    carried: tuple[Type, ...]


class Builder:
    """Builds the body of one region.

    Args:
        graph: what the region is of.
        region: the region.
        inside: run of each node of it, views included, in program order.
        assigned: how its values stand.
        part_of: gives a node as it is in a part.

    Attributes:
        reads: what the region reads from outside, views resolved, in the order in which it does.
        length, size: places along the axis, and of one part.
    """

    def __init__(
        self,
        graph: Graph,
        region: Region,
        inside: Mapping[int, int],
        assigned: Assigned,
        part_of: PartOf,
    ) -> None:
        self.graph = graph
        self.region = region
        self.inside = inside
        self.length = assigned.length
        self.size = part_size(region, assigned.length)
        self.reads = tuple(dict.fromkeys(self._read_outside()))
        self._states = assigned.states
        self._part_of = part_of
        self._names = Names(
            first_fresh(graph), {n.name for n in graph.nodes} | {g.name for g in graph.inputs}
        )
        self._numbers = NumberOf(self._names)
        self._place = Place(self.size, self.length, self._numbers)
        self._halos = self._reach()
        self._fitted = Fitted(graph, self._states, self._halos, self._place, self._names)
        self._nodes: list[Node] = []
        self._new: dict[Value, Value] = {}
        self._parts: dict[Value, Value] = {}
        self._carried: list[Carried] = []

    def build(self, made: Sequence[Value]) -> Built:
        """Return the body, whose results are the values made that the rest reads."""
        operands = [self._operand(value) for value in self.reads]
        results = {value: self._result(value) for value in made}
        extent = self.size if self.length % self.size == 0 else self._numbers("extent")
        part = Part(self.size, extent, self._numbers("start"), _Extents(self._numbers))
        state: list[State] = []
        for ident in self.inside:
            mine = self._in_part(self.graph.node[ident], part)
            for value in self.graph.node[ident].outputs:
                if value in results:
                    own = mine.types[value.index]
                    assert isinstance(own, TensorType)
                    state.append(self._border(value, own, results[value]))
        state = [next(pair for pair in state if pair.input == given.id) for given in results.values()]
        state += [one.state for one in self._carried]
        carries = tuple(one.given for one in self._carried)
        nodes, state = accumulated(self._nodes, state)
        read = {value.node for node in nodes for value in node.inputs}
        numbers = [Number(i, terms) for terms, i in self._numbers.ids.items() if i in read]
        given = [
            Input(n.input, self._names.name(n.text("start", "stop")), "scalar", ScalarType("int"))
            for n in numbers
        ]
        return Built(
            graph=Graph((*operands, *results.values(), *carries, *given), tuple(nodes), (), tuple(state)),
            operands=tuple(item.id for item in operands),
            results=tuple(item.id for item in (*results.values(), *carries)),
            initial=(
                *(self._initial(value) for value in made),
                *(INITIAL[one.how] for one in self._carried),
            ),
            numbers=tuple(numbers),
            carried=tuple(given.type for given in carries),
        )

    # --- inputs ---

    def _read_outside(self) -> Iterator[Value]:
        for ident in self.inside:
            for value in self.graph.node[ident].inputs:
                if value.node not in self.inside:
                    yield from (v for v in self._chain(value) if not self._is_view(v))

    def _chain(self, value: Value) -> list[Value]:
        """A value and everything that the views on the way to its storage read, what is read first."""
        found: dict[Value, None] = {}
        stack = [value]
        while stack:
            item = stack.pop()
            found.pop(item, None)
            found[item] = None
            if self._is_view(item):
                stack.extend(self.graph.node[item.node].inputs)
        return list(reversed(found))

    def _is_view(self, value: Value) -> bool:
        node = self.graph.node.get(value.node)
        return node is not None and node.is_view

    def _operand(self, value: Value) -> Input:
        known = self.graph.input.get(value.node)
        name = known.name if known is not None else self._names.name(f"{self.graph.name_of(value)}.given")
        self._names.taken.add(name)
        kind = known.kind if known is not None else "constant"
        given = Input(self._names.id(), name, kind, self.graph.type(value))
        self._new[value] = Value(given.id)
        return given

    def _result(self, value: Value) -> Input:
        name = self._names.name(f"{self.graph.name_of(value)}{WHOLE}")
        return Input(self._names.id(), name, "buffer", self.graph.type(value))

    # --- nodes ---

    def _reach(self) -> Halos:
        nodes = [self.graph.node[ident] for ident in self.inside]
        try:
            return halos(nodes, self._states, partial(links_of, self.graph))
        except HaloError as error:
            raise refused(self.region, f"{error.node.name} ({error.node.op.name}) {error.why}") from error

    @property
    def is_even(self) -> bool:
        """Whether every part is of one size, what it shares with its neighbours included."""
        return not self.length % self.size and self._halos.even

    def _in_part(self, node: Node, part: Part) -> Node:
        """Add a node as it is in a part, and return that."""
        new = self._operands(node)
        mine = self._part_of(self.graph, node, self._states, self._fitted.part(node, part))
        mine = self._fitted.called(node, mine)
        again = self.inside[node.id] > 0
        ident = self._names.id() if again else node.id
        name = self._names.name(f"{node.name}.again") if again else node.name
        mine = replace(_substituted(mine, new), id=ident, name=name)
        carry = carry_of(self.graph, node, self._states)
        if carry is None:
            self._add(mine)
        else:
            self._carried.append(carried(self._names, mine, *carry))
            self._nodes.extend(self._carried[-1].nodes)
            mine = self._carried[-1].whole
        self._new.update(zip(node.outputs, mine.outputs, strict=True))
        return mine

    def _operands(self, node: Node) -> dict[Value, Value]:
        """Return what a node reads in a part, by what it reads: the rows that it needs."""
        found: dict[Value, Value] = {}
        for index, value in enumerate(node.inputs):
            made, fresh = self._fitted.operand(node, index, self._read(value))
            for item in fresh:
                self._add(item)
            if found.setdefault(value, made) != made:
                raise refused(
                    self.region, f"{node.name} reads {self.graph.name_of(value)} in two ways at once"
                )
        return found

    def _add(self, node: Node) -> Value:
        self._nodes.append(node)
        return Value(node.id)

    def _read(self, value: Value) -> Value:
        """Return a value as a node of a part reads it: made in the part, or sliced, or whole."""
        if value.node in self.inside:
            return self._new[value]
        for item in self._chain(value):
            if item not in self._new:
                self._whole_view(item)
        state = self._states.get(value)
        if not isinstance(state, Factor):
            return self._new[value]
        if value not in self._parts:
            kind, name = self.graph.tensor_type(value), self.graph.name_of(value)
            readers = [user for user in self._readers(value) if self._fitted.reads_as_it_is(user, value)]
            dense = not all(reads_strides(user.op.name) for user in readers)
            margin = self._halos.of(value)
            for node in sliced(
                self._names, name, self._new[value], kind, state, self._place, margin, dense=dense
            ):
                self._parts[value] = self._add(node)
        return self._parts[value]

    def _readers(self, value: Value) -> Iterator[Node]:
        return (self.graph.node[user] for user in self.graph.users.get(value, ()) if user in self.inside)

    def _whole_view(self, value: Value) -> None:
        node = self.graph.node[value.node]
        self._add(_substituted(node, self._new))
        self._new.update((v, v) for v in node.outputs)

    def _border(self, value: Value, own: TensorType, given: Input) -> State:
        """Add what writes a value to a result, and return the pair."""
        state = self._states.get(value)
        whole, mine, name = Value(given.id), self._new[value], self.graph.name_of(value)
        kind = self.graph.tensor_type(value)
        if isinstance(state, Factor):
            mine, fresh = self._fitted.result(value, mine)
            for node in fresh:
                self._add(node)
                own = self._place.cut(own, state)
            for node in placed(self._names, name, whole, mine, (kind, own), state, self._place):
                self._add(node)
        else:
            how = None if state is None else state.combine
            self._add(combined(self._names, name, whole, mine, kind, how))
        return State(given.id, Value(self._nodes[-1].id))

    def _initial(self, value: Value) -> Initial:
        state = self._states.get(value)
        return INITIAL[state.combine] if isinstance(state, Partial) else "empty"


class _Extents(Mapping[int, Value]):
    """Every multiple of the extent, made when it is asked for."""

    def __init__(self, numbers: NumberOf) -> None:
        self._numbers = numbers

    def __getitem__(self, times: int) -> Value:
        return self._numbers("extent", times)

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


def part_size(region: Region, length: int) -> int:
    """Return how many places a part has.

    Raises:
        PlanError: so many parts of one size, the last smaller, do not come out.

    Example:
        >>> part_size(Region("batch", 4, ()), 11)
        3
    """
    size = -(-length // max(region.parts, 1))
    if region.parts < 2 or region.parts > length:
        raise refused(region, f"{region.axis} has {length} places", f"2 to {length} parts", WITHOUT)
    if -(-length // size) != region.parts:
        near = -(-length // size)
        got = f"{length} places in parts of {size} are {near} parts"
        raise refused(region, got, f"{near} parts", f"split it into {near}, or take it out of the plan")
    return size


def first_fresh(graph: Graph) -> int:
    """Return the least id above those of a graph."""
    return 1 + max((*graph.input, *graph.node), default=0)


def refused(region: Region, got: str, expected: str = "", hint: str = "") -> PlanError:
    """Return the error of a region that is none."""
    return PlanError(
        stage="split",
        what=f"this cannot be done in parts along {region.axis}",
        where=f"split {region.axis} into {region.parts}",
        got=got,
        expected=expected or "a region that depends on the rest only before it begins and after it ends",
        hint=hint or "take the node out of the region, or the region out of the plan",
    )


def _substituted(node: Node, new: Mapping[Value, Value]) -> Node:
    return replace(
        node,
        args=tuple(substitute(arg, new) for arg in node.args),
        kwargs=tuple((key, substitute(arg, new)) for key, arg in node.kwargs),
        aliases=tuple(None if alias is None else new.get(alias, alias) for alias in node.aliases),
    )
