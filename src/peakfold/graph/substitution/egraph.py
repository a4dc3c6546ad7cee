"""A small e-graph: whether rules with shape conditions derive an equality, by equality saturation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from peakfold.graph.rule import Apply, Condition, Rule, Term, Var, constants, subterms, variables
from peakfold.graph.substitution.dims import Dim, IllegalShape, Shape, Solver
from peakfold.graph.substitution.operators import OPERATORS
from peakfold.graph.substitution.sampling import UNSTRETCHED, ranks, typed
from peakfold.graph.substitution.shapes import OPAQUE, Typing

Head = tuple[str, tuple[tuple[str, int | str], ...], int]
Node = tuple[Head, tuple[int, ...]]
Bindings = dict[str, int]

MOST_NODES: Final = 4000


@dataclass
class EGraph:
    """Classes of equal terms over inputs of symbolic shapes.

    Attributes:
        inputs: shape of each variable.
        solver: what is known of the symbols in shapes.
        constants: conditions on values that are known to hold.
    """

    inputs: Mapping[str, Shape]
    solver: Solver
    known: frozenset[Condition] = frozenset()
    _parent: list[int] = field(default_factory=list)
    _shape: list[Shape] = field(default_factory=list)
    _index: dict[Node, int] = field(default_factory=dict)
    _by_op: dict[str, dict[Node, None]] = field(default_factory=dict)
    _variables: dict[str, int] = field(default_factory=dict)

    def find(self, c: int) -> int:
        """Return the leader of a class."""
        while self._parent[c] != c:
            self._parent[c] = self._parent[self._parent[c]]
            c = self._parent[c]
        return c

    def _new(self, shape: Shape) -> int:
        self._parent.append(len(self._parent))
        self._shape.append(shape)
        return len(self._parent) - 1

    def add(self, term: Term, bindings: Mapping[str, int]) -> int:
        """Return the class of a term whose variables stand for classes, or for inputs.

        Raises:
            IllegalShape: an operator does not take operands of these shapes.
        """
        if isinstance(term, Var):
            if term.name in bindings:
                return self.find(bindings[term.name])
            if term.name not in self._variables:
                self._variables[term.name] = self._new(self.inputs[term.name])
            return self.find(self._variables[term.name])
        children = tuple(self.add(arg, bindings) for arg in term.args)
        return self.node(((term.op, term.attrs, term.output), children))

    def node(self, node: Node) -> int:
        """Return the class of a node."""
        (op, attrs, output), children = node
        children = tuple(map(self.find, children))
        if OPERATORS[op].commutative:
            children = tuple(sorted(children))
        node = ((op, attrs, output), children)
        found = self._index.get(node)
        if found is None:
            found = self._new(self._typed(node))
            self._index[node] = found
            self._by_op.setdefault(op, {})[node] = None
        return self.find(found)

    def _typed(self, node: Node) -> Shape:
        (op, attrs, output), children = node
        names = tuple(f"x{number}" for number in range(len(children)))
        shapes = {name: self._shape[self.find(c)] for name, c in zip(names, children, strict=True)}
        solver = Solver(dict(self.solver.values), dict(self.solver.least), self.solver.count)
        typing = Typing(shapes, _closed, solver, (OPAQUE,))
        shape = typing.shape(Apply(op, tuple(map(Var, names)), attrs, output))
        if len(solver.values) != len(self.solver.values):
            raise IllegalShape("legal only under further conditions")
        return shape

    def union(self, a: int, b: int) -> bool:
        """Put two classes together; return whether they were apart."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return False
        low, high = min(a, b), max(a, b)
        self._parent[high] = low
        return True

    def rebuild(self) -> None:
        """Restore that equal operands give equal results."""
        changed = True
        while changed:
            changed = False
            index: dict[Node, int] = {}
            for (head, children), c in self._index.items():
                found = tuple(map(self.find, children))
                if OPERATORS[head[0]].commutative:
                    found = tuple(sorted(found))
                node = (head, found)
                if node in index:
                    changed = self.union(index[node], c) or changed
                else:
                    index[node] = self.find(c)
            self._index = index
        self._by_op = {}
        for node in self._index:
            self._by_op.setdefault(node[0][0], {})[node] = None

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self._index)

    def matches(
        self, pattern: Apply, members: dict[int, list[Node]]
    ) -> Iterator[tuple[int, Bindings, dict[str, str]]]:
        """Yield each class that a pattern matches, with its bindings and those of symbolic constants."""
        for node in list(self._by_op.get(pattern.op, ())):
            for bindings, names in self._match_node(pattern, node, {}, {}, members):
                yield self.find(self._index[node]), bindings, names

    def members(self) -> dict[int, list[Node]]:
        """Return the nodes of each class."""
        found: dict[int, list[Node]] = {}
        for node, c in self._index.items():
            found.setdefault(self.find(c), []).append(node)
        return found

    def _match_node(
        self,
        pattern: Apply,
        node: Node,
        bindings: Bindings,
        names: dict[str, str],
        members: dict[int, list[Node]],
    ) -> Iterator[tuple[Bindings, dict[str, str]]]:
        (op, attrs, output), children = node
        if op != pattern.op or output != pattern.output:
            return
        bound = _match_attrs(pattern.attrs, attrs, names)
        if bound is None:
            return
        yield from self._match_all(pattern.args, children, bindings, bound, members)
        if OPERATORS[op].commutative and children[0] != children[1]:
            yield from self._match_all(pattern.args, children[::-1], bindings, bound, members)

    def _match_all(
        self,
        patterns: tuple[Term, ...],
        children: tuple[int, ...],
        bindings: Bindings,
        names: dict[str, str],
        members: dict[int, list[Node]],
    ) -> Iterator[tuple[Bindings, dict[str, str]]]:
        if not patterns:
            yield bindings, names
            return
        first, c = patterns[0], self.find(children[0])
        if isinstance(first, Var):
            if first.name in bindings and self.find(bindings[first.name]) != c:
                return
            further = {**bindings, first.name: c}
            yield from self._match_all(patterns[1:], children[1:], further, names, members)
            return
        for node in members.get(c, ()):
            for inner, bound in self._match_node(first, node, bindings, names, members):
                yield from self._match_all(patterns[1:], children[1:], inner, bound, members)

    def holds(self, condition: Condition, bindings: Bindings, names: Mapping[str, str]) -> bool:
        """Return whether a condition is known to hold of classes."""
        if condition == UNSTRETCHED:
            return True  # of the instance, which `unstretched` looks at
        shapes = [self._found(bindings[a]) for a in condition.args if isinstance(a, str) and a in bindings]
        if condition.name == "rank":
            return len(shapes[0]) == condition.args[1]
        if condition.name == "same_shape":
            return shapes[0] == shapes[1]
        if condition.name in {"same_dim", "ungrouped", "one"}:
            axes = (
                [1, 1] if condition.name == "ungrouped" else [a for a in condition.args if isinstance(a, int)]
            )
            if any(axis >= len(shape) for shape, axis in zip(shapes, axes, strict=True)):
                return False
            dims = [shape[axis] for shape, axis in zip(shapes, axes, strict=True)]
            return dims[0] == (dims[1] if len(dims) > 1 else Dim(1))
        arg = str(condition.args[0])
        return Condition(condition.name, (names.get(arg, arg),)) in self.known

    def _found(self, c: int) -> Shape:
        return tuple(self.solver.find(dim) for dim in self._shape[self.find(c)])

    def unstretched(self, terms: tuple[Term, ...], bindings: Bindings) -> bool:
        """Return whether no elementwise operator of terms stretches an operand."""
        for term in subterms(terms):
            if isinstance(term, Apply) and OPERATORS[term.op].elementwise and len(term.args) == 2:
                shapes = {self._found(self.add(arg, bindings)) for arg in term.args}
                if len(shapes) > 1:
                    return False
        return True


def _closed(options: tuple[str, ...]) -> str:
    if options == (OPAQUE,):
        return OPAQUE
    raise IllegalShape("the shapes leave it open")


def _match_attrs(
    pattern: tuple[tuple[str, int | str], ...],
    attrs: tuple[tuple[str, int | str], ...],
    names: dict[str, str],
) -> dict[str, str] | None:
    if len(pattern) != len(attrs):
        return None
    found = dict(names)
    for (name, wanted), (other, value) in zip(pattern, attrs, strict=True):
        if name != other:
            return None
        if isinstance(wanted, str) and isinstance(value, str):
            if found.setdefault(wanted, value) != value:
                return None
        elif wanted != value:
            return None
    return found


def _with_names(term: Term, names: Mapping[str, str]) -> Term:
    if isinstance(term, Var):
        return term
    attrs = tuple((name, names.get(v, v) if isinstance(v, str) else v) for name, v in term.attrs)
    return Apply(term.op, tuple(_with_names(arg, names) for arg in term.args), attrs, term.output)


@dataclass(frozen=True)
class Direction:
    """A rule read one way, one output at a time."""

    name: str
    left: Apply
    right: Term
    conditions: tuple[Condition, ...]


def directions(rules: tuple[Rule, ...]) -> tuple[Direction, ...]:
    """Return both ways to read each rule, as far as they bind all their variables."""
    found = []
    for rule in rules:
        for lhs, rhs in zip(rule.lhs, rule.rhs, strict=True):
            for left, right in ((lhs, rhs), (rhs, lhs)):
                bound = {*variables((left,)), *constants((left,))}
                asked = {a for c in rule.conditions for a in c.args if isinstance(a, str)}
                needed = {*variables((right,)), *constants((right,)), *asked}
                if isinstance(left, Apply) and needed <= bound:
                    found.append(Direction(rule.name, left, right, rule.conditions))
    return tuple(found)


def derives(rules: tuple[Direction, ...], rule: Rule, rounds: int = 4, most: int = MOST_NODES) -> bool:
    """Return whether rules derive a rule, at its first rank with legal shapes: unstretched, groups open.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> laws = directions((parse_rule("r: add(add(a, b), c) => add(a, add(b, c))"),))
        >>> derives(laws, parse_rule("q: add(add(a, b), add(a, c)) => add(a, add(add(a, b), c))"))
        True
    """
    for rank in ranks(rule):
        try:
            typing = typed(rule, rule.lhs + rule.rhs, rank, lambda options: options[0], (OPAQUE,))
        except IllegalShape:
            continue
        return saturate(rules, rule, typing, rounds, most) is not None
    return False


def saturate(
    rules: tuple[Direction, ...], rule: Rule, typing: Typing, rounds: int, most: int
) -> frozenset[str] | None:
    """Return the names of the rules that joined classes until both sides were one; None if they never were.

    Args:
        rules: what may be used.
        rule: what is to be derived.
        typing: symbolic shapes of one way to be legal.
        rounds: of matching at most.
        most: nodes at most.
    """
    inputs = {name: typing.found(shape) for name, shape in typing.inputs.items()}
    graph = EGraph(inputs, typing.solver, frozenset(rule.conditions))
    try:
        pairs = [
            (graph.add(left, {}), graph.add(right, {}))
            for left, right in zip(rule.lhs, rule.rhs, strict=True)
        ]
    except IllegalShape:
        return None
    used: set[str] = set()
    for number in range(rounds + 1):
        if all(graph.find(a) == graph.find(b) for a, b in pairs):
            return frozenset(used)
        before = graph.size
        if number == rounds or (not _saturated(graph, rules, most, used) and graph.size == before):
            return None
    return None


def _saturated(graph: EGraph, rules: tuple[Direction, ...], most: int, used: set[str]) -> bool:
    members = graph.members()
    found = [
        (c, rule, bindings, names)
        for rule in rules
        for c, bindings, names in graph.matches(rule.left, members)
        if all(graph.holds(condition, bindings, names) for condition in rule.conditions)
    ]
    changed = False
    for c, rule, bindings, names in found:
        if graph.size > most:
            break
        try:
            if UNSTRETCHED in rule.conditions and not graph.unstretched((rule.left, rule.right), bindings):
                continue
            joined = graph.union(c, graph.add(_with_names(rule.right, names), bindings))
        except IllegalShape:
            continue
        if joined:
            used.add(rule.name)
            changed = True
    graph.rebuild()
    return changed
