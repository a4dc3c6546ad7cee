"""A change of a Graph: nodes that are added, and which Values they stand for.

Whatever rewrites a graph does it through `apply`: it keeps the order of the program where it can, refuses
what would make a cycle, drops what is no longer read, and says where each Value has gone. Nodes that a
change does not touch keep their ids.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise

from peakfold.ir.graph import Graph, Node, Value, substitute
from peakfold.ops.strides import counts_in_storage


@dataclass(frozen=True)
class Change:
    """Nodes to add, and what they stand for.

    Attributes:
        new: in an order in which each reads only what stands before it.
        values: for each old Value that is replaced, the one that stands for it.
        nodes: nodes that change their operator or arguments, but neither their outputs nor their ids.
        before: more nodes to add, each list right before the node of an id.
        after: more nodes to add, each list right after the node of an id.
    """

    new: tuple[Node, ...] = ()
    values: Mapping[Value, Value] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    before: Mapping[int, tuple[Node, ...]] = field(default_factory=dict)
    after: Mapping[int, tuple[Node, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ids:
    """Where the Values of a graph are after a rewrite.

    Attributes:
        values: those that another one stands for.
        gone: ids of nodes that are no longer there.
        new: ids of nodes that were not there before, in program order.

    Example:
        >>> first = Ids({Value(1): Value(7)}, frozenset((1,)), (7,))
        >>> both = first.then(Ids({Value(7): Value(0)}, frozenset((7,)), ()))
        >>> both.of(Value(1)), both.of(Value(2)), both.new
        (Value(node=0, index=0), Value(node=2, index=0), ())
    """

    values: Mapping[Value, Value] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()
    new: tuple[int, ...] = ()

    def of(self, value: Value) -> Value | None:
        """Return the Value that stands for an old one, None where nothing does."""
        if value in self.values:
            return self.values[value]
        return None if value.node in self.gone else value

    def then(self, later: "Ids") -> "Ids":
        """Return this rewrite and a later one as one."""
        values = {old: found for old, new in self.values.items() if (found := later.of(new)) is not None}
        made = frozenset(self.new)
        values |= {old: new for old, new in later.values.items() if old.node not in made}
        gone = (self.gone | later.gone) - made
        new = tuple(ident for ident in self.new if ident not in later.gone) + later.new
        return Ids(values, gone, new)


@dataclass(frozen=True)
class Rewritten:
    """A graph after a rewrite, and where the Values of the old one are."""

    graph: Graph
    ids: Ids = Ids()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a rewrite was not done."""

    reason: str


CYCLE = Refusal("what it reads is computed from what it would replace")


def apply(graph: Graph, changes: Change | Sequence[Change]) -> Rewritten | Refusal:
    """Return the graph after changes whose nodes do not overlap, or why they cannot be made.

    New nodes stand where the first node that they replace stood, as far as what they read allows it.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(2))
        >>> def node(id, op, reads):
        ...     op = Op(f"aten.{op}.default")
        ...     return Node(id, f"n{id}", op, (Value(reads),), (), (tensor(2),), (None,))
        >>> nodes = node(1, "neg", 0), node(2, "neg", 1), node(3, "exp", 2)
        >>> twice = Graph((x,), nodes, (Output("y", Value(3)),))
        >>> done = apply(twice, Change(values={Value(2): Value(0)}))
        >>> [n.name for n in done.graph.nodes], done.ids.of(Value(2)), done.ids.of(Value(1))
        (['n3'], Value(node=0, index=0), None)
    """
    given = (changes,) if isinstance(changes, Change) else tuple(changes)
    values = _flat(reduce(lambda all_, change: {**all_, **change.values}, given, {}))
    values = _without_counted(graph, values) if values else values
    changed = {node.id: node for change in given for node in change.nodes}
    own = {node.id: change.values for change in given for node in change.new}
    nodes = _with_new(graph, given, changed)
    nodes = [_reading(node, values, own.get(node.id, {})) for node in nodes] if values else nodes
    ordered = in_order(nodes, frozenset(graph.input))
    if ordered is None:
        return CYCLE
    outputs = tuple(replace(out, value=values.get(out.value, out.value)) for out in graph.outputs)
    state = tuple(replace(pair, output=values.get(pair.output, pair.output)) for pair in graph.state)
    kept = without_dead(ordered, [out.value for out in outputs] + [pair.output for pair in state])
    result = Graph(graph.inputs, tuple(kept), outputs, state)
    return Rewritten(result, _ids(graph, result, values))


def _flat(values: Mapping[Value, Value]) -> dict[Value, Value]:
    """Follow replacements of replacements to their end."""
    flat: dict[Value, Value] = {}
    for old, new in values.items():
        while new in values:
            new = values[new]
        flat[old] = new
    return flat


def _without_counted(graph: Graph, values: dict[Value, Value]) -> dict[Value, Value]:
    """Leave out what would move a view that counts its places from the start of a storage to another one.

    What the caller gives may begin anywhere in its storage; what an operator makes is all of its own.
    """
    counted = {graph.storage(node.outputs[0]) for node in graph.nodes if counts_in_storage(node)}
    if not counted:
        return values

    def stays(old: Value, new: Value) -> bool:
        if graph.storage(old) not in counted:
            return True
        if new.node not in graph.input and new.node not in graph.node:
            return False
        if graph.storage(old) == graph.storage(new):
            return True
        whole = graph.storage(old) == old and graph.storage(new) == new and new.node in graph.node
        return whole and graph.type(old) == graph.type(new)

    return {old: new for old, new in values.items() if stays(old, new)}


def _with_new(graph: Graph, changes: Sequence[Change], changed: Mapping[int, Node]) -> list[Node]:
    at: dict[int, list[Node]] = {}
    place = {node.id: i for i, node in enumerate(graph.nodes)}
    for change in changes:
        replaced = [place[value.node] for value in change.values if value.node in place]
        at.setdefault(min(replaced, default=len(place)), []).extend(change.new)
        for ident, beside in change.before.items():
            at.setdefault(place[ident], []).extend(beside)
        for ident, beside in change.after.items():
            at.setdefault(place[ident] + 1, []).extend(beside)
    nodes: list[Node] = []
    for i, node in enumerate(graph.nodes):
        nodes += at.get(i, ())
        nodes.append(changed.get(node.id, node))
    return nodes + at.get(len(place), [])


def _reading(node: Node, values: Mapping[Value, Value], own: Mapping[Value, Value]) -> Node:
    """Return a node that reads what stands for others; a new node reads on what it stands for itself."""
    if not any(value in values and value not in own for value in node.inputs):
        return node
    values = {old: new for old, new in values.items() if old not in own} if own else values
    args = tuple(substitute(arg, values) for arg in node.args)
    kwargs = tuple((name, substitute(arg, values)) for name, arg in node.kwargs)
    aliases = tuple(None if alias is None else values.get(alias, alias) for alias in node.aliases)
    return replace(node, args=args, kwargs=kwargs, aliases=aliases)


def in_order(nodes: Sequence[Node], given: frozenset[int]) -> Sequence[Node] | None:
    """Return the nodes, each after what it reads, as near to their order as can be; None for a cycle.

    Args:
        nodes: in the order that is wished.
        given: ids of the graph's inputs.
    """
    known = set(given)
    for node in nodes:
        if not known.issuperset(value.node for value in node.inputs):
            return _sorted(nodes, given)
        known.add(node.id)
    return nodes


def _sorted(nodes: Sequence[Node], given: frozenset[int]) -> Sequence[Node] | None:
    place = {node.id: i for i, node in enumerate(nodes)}
    readers: dict[int, list[int]] = {i: [] for i in range(len(nodes))}
    waits: Counter[int] = Counter()
    for node, reads in _edges(nodes, given):
        for read in reads:
            readers[place[read]].append(place[node])
            waits[place[node]] += 1
    ready = [i for i in range(len(nodes)) if not waits[i]]
    done: list[Node] = []
    while ready:
        i = heapq.heappop(ready)
        done.append(nodes[i])
        for reader in readers[i]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    return done if len(done) == len(nodes) else None


def _edges(nodes: Sequence[Node], given: frozenset[int]) -> Iterable[tuple[int, set[int]]]:
    """Yield what each node comes after: what it reads; a draw also after the draw before it."""
    for node in nodes:
        yield node.id, {value.node for value in node.inputs} - given
    for before, after in pairwise(node for node in nodes if node.op.random):
        yield after.id, {before.id}


def without_dead(nodes: Sequence[Node], roots: Iterable[Value]) -> list[Node]:
    """Return the nodes without those that nothing reads; draws and what has effects stay.

    Args:
        nodes: in an order in which each reads only what stands before it.
        roots: what the program returns and leaves.
    """
    needed = {value.node for value in roots}
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.id in needed or node.op.random or not node.op.pure:
            needed.update(value.node for value in node.inputs)
            kept.append(node)
    kept.reverse()
    return kept


def _ids(graph: Graph, result: Graph, values: Mapping[Value, Value]) -> Ids:
    there = result.node
    gone = frozenset(ident for ident in graph.node if ident not in there)
    new = tuple(node.id for node in result.nodes if node.id not in graph.node)
    held = {old: new for old, new in values.items() if new.node in there or new.node in graph.input}
    return Ids(held, gone, new)
