"""A canonical hash of graphs after Weisfeiler and Lehman, kept up to date as a graph is rewritten.

A node's first label is its operator, its constant arguments, its types, and the module and phase that it
comes from; an input's is its name. In each round a label takes in the labels of what is read, by position,
and of the readers, as a multiset. The hash is the sum over all nodes, so that a change costs as much as its
neighbourhood is large. Ids, names and the order of nodes do not count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from peakfold.ir.graph import Arg, Graph, Node, Value

ROUNDS = 3
_MASK = (1 << 64) - 1

Labels = Mapping[int, int]


@dataclass(frozen=True)
class Hashed:
    """The hash of a graph, and the labels that it is made of.

    Attributes:
        graph: what is hashed.
        rounds: labels of nodes and inputs by id, one mapping a round, the first before all rounds.
        total: sum over the nodes.
    """

    graph: Graph
    rounds: tuple[Labels, ...]
    total: int

    @property
    def value(self) -> int:
        """The hash: 64 bits."""
        last = self.rounds[-1]
        ends = [(0, i, out.value) for i, out in enumerate(self.graph.outputs)]
        ends += [(1, pair.input, pair.output) for pair in self.graph.state]
        found = self.total
        for kind, place, value in ends:
            found += _mixed(kind, place if kind == 0 else last[place], last[value.node], value.index)
        return found & _MASK


def hashed(graph: Graph) -> Hashed:
    """Return the hash of a graph.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> def program(a, b):
        ...     x = Input(0, "x", "batch", tensor(2))
        ...     def node(id, op, reads):
        ...         return Node(id, f"n{id}", Op(op), (Value(reads),), (), (tensor(2),), (None,))
        ...     return Graph((x,), (node(a, "exp", 0), node(b, "neg", a)), (Output("y", Value(b)),))
        >>> hashed(program(1, 2)).value == hashed(program(7, 5)).value
        True
    """
    rounds = [_first(graph)]
    for _ in range(ROUNDS):
        rounds.append({ident: _next(graph, ident, rounds[-1]) for ident in rounds[-1]})
    return Hashed(graph, tuple(rounds), sum(map(_spread, rounds[-1].values())) & _MASK)


def hashed_after(before: Hashed, graph: Graph) -> Hashed:
    """Return the hash of a rewritten graph from that of the graph before: only what is near is looked at."""
    changed, beside = _differences(before.graph, graph)
    gone = before.graph.node.keys() - graph.node.keys()
    rounds: list[dict[int, int]] = []
    dirty = set(changed)
    for i, old in enumerate(before.rounds):
        now = dict(old)
        for ident in gone:
            del now[ident]
        if i:
            dirty = dirty | beside | _near(graph, dirty)
        for ident in dirty:
            now[ident] = _next(graph, ident, rounds[-1]) if i else _own(graph.node[ident])
        rounds.append(now)
    last, new = before.rounds[-1], rounds[-1]
    total = before.total - sum(_spread(last[ident]) for ident in gone)
    total += sum(
        _spread(new[ident]) - _spread(last[ident]) if ident in last else _spread(new[ident])
        for ident in dirty
    )
    return Hashed(graph, tuple(rounds), total & _MASK)


def _differences(before: Graph, after: Graph) -> tuple[set[int], set[int]]:
    """Return nodes that are new or say something else, and all whose readers or operands are others."""
    changed = {ident for ident, node in after.node.items() if before.node.get(ident) is not node}
    gone = [node for ident, node in before.node.items() if ident not in after.node]
    beside = set(changed)
    for node in (*gone, *(before.node[ident] for ident in changed if ident in before.node)):
        beside.update(value.node for value in node.inputs)
    for ident in changed:
        beside.update(value.node for value in after.node[ident].inputs)
    return changed, {ident for ident in beside if ident in after.node or ident in after.input}


def _near(graph: Graph, idents: Iterable[int]) -> set[int]:
    found: set[int] = set()
    for ident in idents:
        node = graph.node.get(ident)
        found.update(value.node for value in (node.inputs if node is not None else ()))
        for value in node.outputs if node is not None else (Value(ident),):
            found.update(graph.users.get(value, ()))
    return found


def _first(graph: Graph) -> dict[int, int]:
    labels = {given.id: _text(f"{given.name} {given.kind} {given.type}") for given in graph.inputs}
    labels |= {node.id: _own(node) for node in graph.nodes}
    return labels


def _own(node: Node) -> int:
    constants = (tuple(map(_constant, node.args)), tuple((name, _constant(arg)) for name, arg in node.kwargs))
    place = (node.origin.module, node.origin.phase)
    inside = tuple(body.digest for body in node.bodies)
    return _text(repr((node.op.name, constants, node.types, node.stream, place, *inside)))


def _constant(arg: Arg) -> object:
    """Return an argument with a mark in the place of each Value."""
    if isinstance(arg, Value):
        return Value
    return tuple(map(_constant, arg)) if isinstance(arg, tuple) else arg


def _next(graph: Graph, ident: int, labels: Labels) -> int:
    node = graph.node.get(ident)
    reads = node.inputs if node is not None else ()
    outputs = node.outputs if node is not None else (Value(ident),)
    label = labels[ident]
    for place, value in enumerate(reads):
        label = _mixed(label, place, labels[value.node], value.index)
    readers = 0
    for value in outputs:
        for reader in graph.users.get(value, ()):
            places = [i for i, other in enumerate(graph.node[reader].inputs) if other == value]
            readers += sum(_mixed(labels[reader], place, value.index, 1) for place in places)
    return _mixed(label, readers & _MASK, 2, 3)


def _mixed(*parts: int) -> int:
    found = 0x9E3779B97F4A7C15
    for part in parts:
        found = _spread(found ^ (part & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
    return found


def _spread(number: int) -> int:
    """Return a number with its bits spread over 64 (splitmix64)."""
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _MASK
    return number ^ (number >> 31)


@lru_cache(maxsize=1 << 16)
def _text(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
