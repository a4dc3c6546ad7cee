"""Ordered rewriting: a quick, sound and incomplete test of whether rules derive an equality."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from peakfold.graph.rule import Apply, Rule, Term, Var, variables
from peakfold.graph.rule import constants as constants_of
from peakfold.graph.substitution.operators import OPERATORS

Bindings = dict[str, Term]


Order = tuple[int, str, str, tuple["Order", ...]]


@lru_cache(maxsize=200_000)
def order(term: Term) -> Order:
    """Return the place of a term in the order in which rewriting goes down: nodes, operator, operands.

    It is kept in every context: a lower operand makes a lower term.
    """
    if isinstance(term, Var):
        return (1, "", term.name, ())
    operands = tuple(map(order, term.args))
    nodes = 1 + sum(operand[0] for operand in operands)
    return (nodes, term.op, f"{term.attrs}{term.output}", operands)


def matches(pattern: Term, term: Term, bindings: Mapping[str, Term]) -> Iterator[Bindings]:
    """Yield the ways in which a term is an instance of a pattern; commutative operators match both ways."""
    if isinstance(pattern, Var):
        known = bindings.get(pattern.name)
        if known is None:
            yield {**bindings, pattern.name: term}
        elif known == term:
            yield dict(bindings)
        return
    if not isinstance(term, Apply) or (pattern.op, pattern.attrs, pattern.output) != (
        term.op,
        term.attrs,
        term.output,
    ):
        return
    yield from _all_match(pattern.args, term.args, dict(bindings))
    if OPERATORS[pattern.op].commutative and term.args[0] != term.args[1]:
        yield from _all_match(pattern.args, term.args[::-1], dict(bindings))


def _all_match(patterns: tuple[Term, ...], terms: tuple[Term, ...], bindings: Bindings) -> Iterator[Bindings]:
    if not patterns:
        yield bindings
        return
    for found in matches(patterns[0], terms[0], bindings):
        yield from _all_match(patterns[1:], terms[1:], found)


def instance(term: Term, bindings: Mapping[str, Term]) -> Term:
    """Return a term with its variables replaced."""
    if isinstance(term, Var):
        return bindings.get(term.name, term)
    return replace(term, args=tuple(instance(arg, bindings) for arg in term.args))


@dataclass
class Rewriter:
    """Brings terms down to a normal form by rules, each used only where it lowers the term.

    Conditions are not looked at: what is tested is whether an equality is an instance of laws that are
    kept, each with its own condition.
    """

    _rules: dict[tuple[str, object], list[tuple[Term, Term]]] = field(default_factory=dict)
    _memo: dict[Term, Term] = field(default_factory=dict)

    def add(self, rule: Rule) -> None:
        """Use a further rule, in either direction that reads no new variables."""
        for lhs, rhs in zip(rule.lhs, rule.rhs, strict=True):
            for left, right in ((lhs, rhs), (rhs, lhs)):
                if isinstance(left, Apply) and set(variables((right,))) <= set(variables((left,))):
                    self._rules.setdefault((left.op, left.attrs), []).append((left, right))
        self._memo.clear()

    def lowered(self, term: Term) -> Term:
        """Return the normal form of a term."""
        if isinstance(term, Var):
            return term
        found = self._memo.get(term)
        if found is None:
            args = tuple(map(self.lowered, term.args))
            here = self._sorted(replace(term, args=args))
            found = self._down(here)
            self._memo[term] = found
        return found

    def _sorted(self, term: Apply) -> Apply:
        if OPERATORS[term.op].commutative and order(term.args[1]) < order(term.args[0]):
            return replace(term, args=term.args[::-1])
        return term

    def _down(self, term: Apply) -> Term:
        rank = order(term)
        for left, right in self._rules.get((term.op, term.attrs), ()):
            for bindings in matches(left, term, {}):
                other = instance(right, bindings)
                if order(other) < rank:
                    lowered = self.lowered(other)
                    if order(lowered) < rank:
                        return lowered
        return term


def generalized(rule: Rule) -> Rule:
    """Return a rule with its variables named a, b, c .. and constants s, t .. in the order of reading.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> print(generalized(parse_rule("r: sub(c, a) => neg(sub(a, c))")))
        r: sub(a, b) => neg(sub(b, a))
    """
    terms = rule.lhs + rule.rhs
    letters = iter("abcdefghjklmnopq")
    names = {name: name if name == "i" else next(letters) for name in variables(terms)}
    bindings: dict[str, Term] = {old: Var(new) for old, new in names.items()}
    lhs = tuple(instance(term, bindings) for term in rule.lhs)
    rhs = tuple(instance(term, bindings) for term in rule.rhs)
    conditions = tuple(
        replace(c, args=tuple(names.get(arg, arg) if isinstance(arg, str) else arg for arg in c.args))
        for c in rule.conditions
    )
    return replace(rule, lhs=lhs, rhs=rhs, conditions=conditions)


def has_new_names(rule: Rule) -> bool:
    """Return whether the right side reads variables or constants that the left does not."""
    left = set(variables(rule.lhs)) | set(constants_of(rule.lhs))
    return not set(variables(rule.rhs)) | set(constants_of(rule.rhs)) <= left
