"""Classes of equal Values of a graph and of what rules make of it: an e-graph over ATen operators.

After Nelson and Oppen, and Willsey et al., "egg: Fast and Extensible Equality Saturation" (POPL 2021): every
rule is applied everywhere without taking anything away; equal operators on equal operands are one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from peakfold.graph.rewrite.candidate import build
from peakfold.graph.rewrite.maker import Maker, first_free
from peakfold.graph.rewrite.match import Match, Matcher
from peakfold.graph.rewrite.vocabulary import readings
from peakfold.graph.rewrite.words import Reading
from peakfold.ir.graph import Arg, Graph, Node, Value, substitute
from peakfold.ir.types import Type

Key = tuple[object, ...]


@dataclass
class Classes:
    """A graph that only grows, and which of its Values are equal.

    Attributes:
        graph: the given graph, then what was made.
        rule_of: by id of a node that was made, the rule that made it.
    """

    graph: Graph
    rule_of: dict[int, str] = field(default_factory=dict)
    _parent: dict[Value, Value] = field(default_factory=dict)
    _known: dict[Key, Value] = field(default_factory=dict)
    _made: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with every Value in a class of its own, and equal operators in one."""
        self._first = self._free = first_free(self.graph)
        self.rebuild()

    @property
    def size(self) -> int:
        """How many nodes were made."""
        return len(self._made)

    def find(self, value: Value) -> Value:
        """Return the leader of the class of a Value: its first."""
        while (parent := self._parent.get(value, value)) != value:
            self._parent[value] = self._parent.get(parent, parent)
            value = parent
        return value

    def union(self, a: Value, b: Value) -> bool:
        """Say that two Values are equal; return whether that is news."""
        low, high = sorted((self.find(a), self.find(b)))
        self._parent[high] = low
        return low != high

    def made(self, match: Match) -> tuple[Value, ...]:
        """Make the right side of a match; what is there already is not made again.

        Raises:
            CannotInfer: a word cannot be said for its operands.
        """
        beside = next(node for ident in sorted(match.nodes) if (node := self._node(ident)) is not None)
        maker = _Consing(self._whole, beside, self._free, self)
        found = tuple(build(maker, term, match.variables, match.constants) for term in match.rule.rhs)
        self._free += len(maker.nodes)
        for node in maker.nodes:
            self._made.append(node)
            self._nodes[node.id] = node
            self._known[self.key(node.op.name, node.args, dict(node.kwargs))] = Value(node.id)
            self.rule_of[node.id] = match.rule.name
        return found

    def type(self, value: Value) -> Type:
        """Return the type of a Value, made or given."""
        node = self._nodes.get(value.node)
        return self.graph.input[value.node].type if node is None else node.types[value.index]

    def phase(self, ident: int) -> str:
        """Return the phase of a node."""
        return self._nodes[ident].origin.phase if ident in self._nodes else "forward"

    def _node(self, ident: int) -> Node | None:
        return self._nodes.get(ident)

    def key(self, op: str, args: tuple[Arg, ...], kwargs: Mapping[str, Arg]) -> Key:
        """Return what is equal for equal operators on equal operands."""
        return (
            op,
            tuple(map(self._leading, args)),
            tuple((name, self._leading(arg)) for name, arg in kwargs.items()),
        )

    def _leading(self, arg: Arg) -> object:
        if isinstance(arg, Value):
            return self.find(arg)
        if isinstance(arg, tuple):
            return tuple(map(self._leading, arg))
        return type(arg), repr(arg) if isinstance(arg, float) else arg

    def known(self, key: Key) -> Value | None:
        """Return the Value of an operator that is there."""
        return self._known.get(key)

    def rebuild(self) -> None:
        """Restore that equal operators on equal operands are in one class."""
        nodes = (*self.graph.nodes, *self._made)
        self._nodes = {node.id: node for node in nodes}
        self._whole = replace(self.graph, nodes=nodes)
        changed = True
        while changed:
            changed = False
            self._known = {}
            for node in nodes:
                if node.op.random or not node.op.pure:
                    continue
                key = self.key(node.op.name, node.args, dict(node.kwargs))
                first = self._known.setdefault(key, Value(node.id))
                if first.node == node.id or self._nodes[first.node].types != node.types:
                    continue
                for one, other in zip(self._nodes[first.node].outputs, node.outputs, strict=True):
                    changed = self.union(one, other) or changed

    def made_since(self, size: int) -> tuple[int, ...]:
        """Return the ids of the nodes that were made after so many."""
        return tuple(node.id for node in self._made[size:])

    def words_since(self, size: int) -> frozenset[str]:
        """Return the words that the nodes say which were made after so many."""
        new = self._made[size:]
        return frozenset(reading.op for node in new for reading in readings(self._whole, node))

    @property
    def whole(self) -> Graph:
        """All nodes as one graph; not in an order in which it could run."""
        return self._whole

    def matcher(self) -> "ClassMatcher":
        """Return a matcher over the classes as they are now."""
        return ClassMatcher(self._whole, self)


class _Consing(Maker):
    """Makes nodes unless equal ones are there."""

    def __init__(self, graph: Graph, root: Node, first: int, classes: Classes) -> None:
        super().__init__(graph, root, first)
        self._classes = classes

    def type(self, value: Value) -> Type:
        found = self._types.get(value)
        return self._classes.type(value) if found is None else found

    def call(self, op: str, *args: Arg, **kwargs: Arg) -> Value:
        known = self._classes.known(self._classes.key(op, args, kwargs))
        return super().call(op, *args, **kwargs) if known is None else known


@dataclass(frozen=True)
class ClassMatcher(Matcher):
    """Finds rules among classes: a class says what any of its members says."""

    classes: Classes

    @cached_property
    def said(self) -> Mapping[Value, tuple[Reading, ...]]:
        """What each class says, by its leader; operands are leaders too."""
        found: dict[Value, dict[object, Reading]] = {}
        find = self.classes.find
        for node in self.graph.nodes:
            for reading in readings(self.graph, node):
                args = tuple(map(find, reading.args))
                key = (reading.op, args, tuple(reading.attrs.items()))
                told = replace(reading, args=args, through=(node.id, *reading.through))
                found.setdefault(find(Value(node.id)), {}).setdefault(key, told)
        return {value: tuple(told.values()) for value, told in found.items()}

    @cached_property
    def _readers(self) -> Mapping[Value, tuple[Value, ...]]:
        found: dict[Value, dict[Value, None]] = {}
        for value, told in self.said.items():
            for reading in told:
                for arg in reading.args:
                    found.setdefault(arg, {})[value] = None
        return {value: tuple(readers) for value, readers in found.items()}

    def readers_of(self, value: Value) -> tuple[Value, ...]:
        """Return the classes that say something of a class."""
        return self._readers.get(value, ())


def substituted(node: Node, new: Mapping[Value, Value]) -> Node:
    """Return a node that reads other Values; the same object where it reads none of them."""
    if not any(new.get(value, value) != value for value in node.inputs):
        return node
    args = tuple(substitute(arg, new) for arg in node.args)
    kwargs = tuple((name, substitute(arg, new)) for name, arg in node.kwargs)
    aliases = tuple(None if alias is None else new.get(alias, alias) for alias in node.aliases)
    return replace(node, args=args, kwargs=kwargs, aliases=aliases)
