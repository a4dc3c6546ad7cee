"""Where the left side of a rule is in a graph."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property

from peakfold.graph.rewrite.vocabulary import COMMUTATIVE, readings
from peakfold.graph.rewrite.words import Attrs, Reading
from peakfold.graph.rule import Apply, Rule, Term, Var, subterms
from peakfold.ir.graph import Arg, Graph, Value


@dataclass(frozen=True)
class Match:
    """One place where a rule's left side is.

    Attributes:
        rule: the rule.
        roots: the Values that its left terms are.
        variables: the Values that its variables are.
        constants: what its symbolic constants are.
        nodes: ids of the nodes that its operators are.
    """

    rule: Rule
    roots: tuple[Value, ...]
    variables: Mapping[str, Value] = field(default_factory=dict)
    constants: Mapping[str, Arg] = field(default_factory=dict)
    nodes: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Matcher:
    """A graph, indexed by what its nodes say in the words of rules.

    Attributes:
        graph: what is searched.
    """

    graph: Graph

    @cached_property
    def said(self) -> Mapping[Value, tuple[Reading, ...]]:
        """What each Value says."""
        found = ((node, readings(self.graph, node)) for node in self.graph.nodes)
        return {Value(node.id): said for node, said in found if said}

    @cached_property
    def index(self) -> Mapping[str, tuple[Value, ...]]:
        """Values by the words that they say, in program order."""
        found: dict[str, list[Value]] = {}
        for value, said in self.said.items():
            for reading in said:
                found.setdefault(reading.op, []).append(value)
        return {op: tuple(values) for op, values in found.items()}

    @cached_property
    def saying(self) -> Mapping[tuple[Value, str], tuple[Reading, ...]]:
        """What each Value says with each word."""
        found: dict[tuple[Value, str], list[Reading]] = {}
        for value, said in self.said.items():
            for reading in said:
                found.setdefault((value, reading.op), []).append(reading)
        return {key: tuple(said) for key, said in found.items()}

    def missing(self, rule: Rule) -> str | None:
        """Return an operator of a rule's left side that is nowhere in the graph, None where all are."""
        return next((word for word in words_of(rule) if word not in self.index), None)

    def matches(self, rule: Rule, first: frozenset[int] | None = None) -> Iterator[Match]:
        """Yield each place where a rule's left side is; conditions are not looked at.

        Args:
            rule: the rule.
            first: ids of nodes; a match must contain one of them. None for all.

        Example:
            >>> from peakfold.graph.rule import parse_rule
            >>> from peakfold.ir.graph import Input, Node, Op, Output
            >>> from peakfold.ir.types import tensor
            >>> given = tuple(Input(i, f"x{i}", "batch", tensor(2, 2)) for i in range(3))
            >>> def mm(id, a, b):
            ...     op = Op("aten.mm.default")
            ...     return Node(id, f"m{id}", op, (Value(a), Value(b)), (), (tensor(2, 2),), (None,))
            >>> graph = Graph(given, (mm(3, 0, 1), mm(4, 3, 2)), (Output("y", Value(4)),))
            >>> rule = parse_rule("r: matmul(matmul(a, b), c) => matmul(a, matmul(b, c))")
            >>> [match.variables["c"].node for match in Matcher(graph).matches(rule)]
            [2]
        """
        if self.missing(rule) is not None:
            return
        for found in self._rooted(rule, rule.lhs, Match(rule, ())):
            if first is None or found.nodes & first:
                yield found

    def _rooted(self, rule: Rule, terms: tuple[Term, ...], sofar: Match) -> Iterator[Match]:
        if not terms:
            yield sofar
            return
        for root in self._roots(terms[0], sofar):
            if root in sofar.roots:
                continue
            for found in self._term(terms[0], root, sofar):
                rooted = Match(rule, (*sofar.roots, root), found.variables, found.constants, found.nodes)
                yield from self._rooted(rule, terms[1:], rooted)

    def _roots(self, term: Term, sofar: Match) -> tuple[Value, ...]:
        """Return where a term may be: among the readers of an operand that is known, or anywhere."""
        assert isinstance(term, Apply), "a rule's left side is an operator"
        for arg in term.args:
            if isinstance(arg, Var) and arg.name in sofar.variables:
                return self.readers_of(sofar.variables[arg.name])
        return self.index.get(term.op, ())

    def readers_of(self, value: Value) -> tuple[Value, ...]:
        """Return the Values that say something of a Value."""
        readers = (Value(reader) for reader in self.graph.users.get(value, ()))
        return tuple(reader for reader in readers if reader in self.said)

    def _term(self, term: Term, value: Value, sofar: Match) -> Iterator[Match]:
        if isinstance(term, Var):
            known = sofar.variables.get(term.name)
            if known is None:
                variables = {**sofar.variables, term.name: value}
                yield Match(sofar.rule, sofar.roots, variables, sofar.constants, sofar.nodes)
            elif known == value:
                yield sofar
            return
        for reading in self.saying.get((value, term.op), ()):
            if len(reading.args) != len(term.args) or term.output:
                continue
            constants = _constants(term, reading.attrs, sofar.constants)
            if constants is None:
                continue
            nodes = sofar.nodes | {value.node, *reading.through}
            inner = Match(sofar.rule, sofar.roots, sofar.variables, constants, nodes)
            for args in _orders(term, reading.args):
                if self._may_be(term.args, args):
                    yield from self._args(term.args, args, inner)

    def _may_be(self, terms: tuple[Term, ...], values: tuple[Value, ...]) -> bool:
        """Return whether each Value says the first word of its term: looked at before any is taken apart."""
        pairs = zip(terms, values, strict=True)
        return all(isinstance(term, Var) or (value, term.op) in self.saying for term, value in pairs)

    def _args(self, terms: tuple[Term, ...], values: tuple[Value, ...], sofar: Match) -> Iterator[Match]:
        if not terms:
            yield sofar
            return
        for found in self._term(terms[0], values[0], sofar):
            yield from self._args(terms[1:], values[1:], found)


@cache
def words_of(rule: Rule) -> tuple[str, ...]:
    """Return the operators of a rule's left side."""
    return tuple(dict.fromkeys(term.op for term in subterms(rule.lhs) if isinstance(term, Apply)))


def _orders(term: Apply, args: tuple[Value, ...]) -> Iterator[tuple[Value, ...]]:
    yield args
    if term.op in COMMUTATIVE and args[0] != args[1]:
        yield args[::-1]


def _constants(term: Apply, attrs: Attrs, known: Mapping[str, Arg]) -> Mapping[str, Arg] | None:
    """Return the constants with those that a term's attributes name; None where they do not fit.

    An attribute that the term leaves out is 0.
    """
    named = dict(term.attrs)
    if any(value for name, value in attrs.items() if name not in named):
        return None
    found = dict(known)
    for name, wanted in term.attrs:
        if name not in attrs:
            return None
        given = attrs[name]
        if isinstance(wanted, str):
            if found.setdefault(wanted, given) != given:
                return None
        elif given != wanted:
            return None
    return found
