"""From pairs of equal terms to a basis of rules: what others derive is dropped, what is left is proved."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from peakfold.graph.rule import (
    FIELD,
    INDEX,
    UNDECIDED,
    Apply,
    Condition,
    Rule,
    Term,
    Var,
    subterms,
    variables,
)
from peakfold.graph.substitution.derivation import derivation
from peakfold.graph.substitution.egraph import derives, directions
from peakfold.graph.substitution.operators import operators_of
from peakfold.graph.substitution.proving import prove
from peakfold.graph.substitution.rewriting import Rewriter, generalized, has_new_names, order
from peakfold.graph.substitution.testing import SHAPES, conditioned, examine

CONVOLUTIONS: Final = frozenset({"conv", "conv_relu"})
QUICK: Final = (2, 80)
GROWING: Final = (3, 250)
THOROUGH: Final = (3, 600)
"""Rounds of equality saturation and nodes at most."""


@dataclass
class Counts:
    """How many pairs of equal terms are left after each prune.

    Attributes:
        pairs: terms that are equal to a smaller or earlier one on all worlds, up to renaming of inputs.
        apart: those that are not the same term up to common subterms and the order of operands.
        underived: those that the rules found before do not derive.
        late: those of them that a longer search derives, where one is made.
        wrong: those that an exact test refutes.
        kept: those that became rules.
        basis: those that no other rule derives.
        graphs: pairs of equal graphs with several outputs that were looked at.
        joint: those whose outputs share operators, so that outputs cannot be replaced one by one.
        joint_underived: those that the rules found before do not derive output by output.
    """

    pairs: int = 0
    apart: int = 0
    underived: int = 0
    late: int = 0
    wrong: int = 0
    kept: int = 0
    basis: int = 0
    graphs: int = 0
    joint: int = 0
    joint_underived: int = 0


@dataclass
class Basis:
    """Rules that are kept so far, and what derives from them.

    Attributes:
        rules: in the order in which they were found.
        counts: of pairs.
        seed: of shapes and values.
        thorough: whether a longer search is made before a pair becomes a rule, by rules over what its
            operators are made of too.
    """

    rules: list[Rule] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    seed: int = 0
    thorough: bool = False
    _rewriter: Rewriter = field(default_factory=Rewriter)
    _known: list[Rule] = field(default_factory=list)

    def know(self, rules: Iterable[Rule]) -> None:
        """Use rules to derive others, without counting them as found."""
        for rule in rules:
            self._rewriter.add(rule)
            self._known.append(rule)

    def take_up(self, rules: Iterable[Rule]) -> None:
        """Go on from rules that were found before."""
        self.rules = list(rules)
        for rule in self.rules:
            self._rewriter.add(rule)

    def consider(self, left: Term, right: Term) -> Rule | None:
        """Look at a pair of equal terms; return the rule that it became, if it did."""
        self.counts.pairs += 1
        if left == right or same_root(left, right) or convolves_itself((left, right)):
            return None
        self.counts.apart += 1
        if self._rewriter.lowered(left) == self._rewriter.lowered(right):
            return None
        found = oriented(left, right)
        if derived(found, (*self._known, *self.rules), QUICK):
            return None
        self.counts.underived += 1
        return self._kept(found)

    def consider_graphs(self, left: tuple[Term, ...], right: tuple[Term, ...]) -> Rule | None:
        """Look at two equal graphs with several outputs; return the rule that they became, if they did."""
        self.counts.graphs += 1
        if not (shares(left) or shares(right)) or convolves_itself(left + right):
            return None
        self.counts.joint += 1
        if tuple(map(self._rewriter.lowered, left)) == tuple(map(self._rewriter.lowered, right)):
            return None
        found = generalized(Rule("r", left, right))
        if derived(found, (*self._known, *self.rules), GROWING):
            return None
        self.counts.joint_underived += 1
        return self._kept(found)

    def _kept(self, found: Rule) -> Rule | None:
        if self._follows(found):
            return None
        rule = certified(found, self.seed)
        if rule is None:
            self.counts.wrong += 1
            return None
        if rule.conditions and self._follows(rule):
            return None
        self.rules.append(rule)
        self.counts.kept += 1
        self._rewriter.add(rule)
        return rule

    def _follows(self, rule: Rule) -> bool:
        if not self.thorough or derivation(rule, (*self._known, *self.rules), *GROWING) is None:
            return False
        self.counts.late += 1
        return True

    def minimize(self, known: Iterable[Rule], progress: Callable[[int], None] = lambda left: None) -> None:
        """Drop each rule that smaller ones, and then that any others, derive by equality saturation."""
        given = list(known)
        ordered = sorted(self.rules, key=lambda rule: (len(rule.lhs), *map(order, rule.lhs)))
        kept: list[Rule] = []
        for number, rule in enumerate(ordered):
            progress(len(ordered) - number)
            if not derived(rule, (*given, *kept)):
                kept.append(rule)
        for rule in reversed(tuple(kept)):
            others = [r for r in kept if r is not rule]
            if derived(rule, (*given, *others), THOROUGH):
                kept = others
        self.rules = kept
        self.counts.basis = len(kept)


def derived(rule: Rule, others: tuple[Rule, ...], limits: tuple[int, int] = GROWING) -> bool:
    """Return whether rules over the same operators derive a rule, by equality saturation."""
    used = operators_of(rule.lhs + rule.rhs)
    near = tuple(r for r in others if operators_of(r.lhs + r.rhs) <= used)
    return derives(directions(near), rule, *limits)


def same_root(left: Term, right: Term) -> bool:
    """Return whether terms differ in operands only: an equality of these, which stands on its own."""
    if isinstance(left, Var) or isinstance(right, Var):
        return False
    if (left.op, left.attrs, left.output) != (right.op, right.attrs, right.output):
        return False
    return sum(a != b for a, b in zip(left.args, right.args, strict=True)) == 0


def shares(terms: tuple[Term, ...]) -> bool:
    """Return whether an operator is part of two of the terms, or makes two of them.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> shares(parse_rule("r: neg(exp(a)) ; relu(exp(a)) => a ; b").lhs)
        True
    """
    seen: set[Term] = set()
    for term in terms:
        nodes = {replace(t, output=0) for t in subterms((term,)) if isinstance(t, Apply)}
        if nodes & seen:
            return True
        seen |= nodes
    return False


def modulo_axis(rules: Iterable[Rule]) -> int:
    """Return how many rules there are when those count once that differ in the numbers of axes alone.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> modulo_axis(parse_rule(f"r: neg(sum[axis={k}](a)) => sum[axis={k}](neg(a))") for k in (0, 1))
        1
    """
    return len({_without_axes(rule) for rule in rules})


def _without_axes(rule: Rule) -> tuple[tuple[Term, ...], tuple[Term, ...], tuple[Condition, ...]]:
    """Return a rule with its axes numbered in the order in which they are read."""
    numbers: dict[int, int] = {}

    def turned(term: Term) -> Term:
        if isinstance(term, Var):
            return term
        attrs = tuple(
            (name, _numbered(value, numbers) if name in {"axis", "of"} else value)
            for name, value in term.attrs
        )
        return replace(term, attrs=attrs, args=tuple(map(turned, term.args)))

    lhs, rhs = tuple(map(turned, rule.lhs)), tuple(map(turned, rule.rhs))
    conditions = (
        c if c.name == "rank" else replace(c, args=tuple(_numbered(arg, numbers) for arg in c.args))
        for c in rule.conditions
    )
    return lhs, rhs, tuple(conditions)


def _numbered(value: int | str, numbers: dict[int, int]) -> int | str:
    return numbers.setdefault(value, len(numbers)) if isinstance(value, int) else value


def convolves_itself(terms: tuple[Term, ...]) -> bool:
    """Return whether a convolution reads a variable as its input and as its kernel, as no program does."""
    found = (t for t in subterms(terms) if isinstance(t, Apply) and t.op in CONVOLUTIONS)
    return any(set(variables((t.args[0],))) & set(variables((t.args[1],))) for t in found)


def oriented(left: Term, right: Term) -> Rule:
    """Return a rule from the larger of two terms to the smaller, variables named in order."""
    rule = Rule("r", (left,), (right,))
    if order(left) < order(right) or (has_new_names(rule) and not has_new_names(rule.reversed())):
        rule = replace(rule, lhs=rule.rhs, rhs=rule.lhs)
    return generalized(rule)


def certified(rule: Rule, seed: int = 0) -> Rule | None:
    """Return a rule with the conditions that it needs and its certificate, None where it is wrong.

    Of convolutions only what is proved is kept: few of the shapes that a test draws have groups.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> print(certified(parse_rule("r: relu(scale[by=s](a)) => scale[by=s](relu(a))")))
        r: relu(scale[by=s](a)) => scale[by=s](relu(a)) when positive(s) proof index
    """
    if isinstance(rule.lhs[0], Var) and len(rule.lhs) == 1:
        rule = replace(rule, lhs=rule.rhs, rhs=rule.lhs)
    verdict = examine(rule, seed, 6)
    if verdict.kind == "vacuous":
        return None
    if verdict.kind in {"wrong", "partial"} or examine(rule, seed).kind in {"wrong", "partial"}:
        found = conditioned(rule, seed)
        if found is None or examine(found, seed).kind not in {"holds", "undecided"}:
            return None
        rule = found
    if prove(rule).holds:
        return replace(rule, level=INDEX)
    verdict = examine(rule, seed + 17, 2 * SHAPES)
    unproved = bool(operators_of(rule.lhs + rule.rhs) & CONVOLUTIONS)
    if unproved or verdict.kind not in {"holds", "undecided"}:
        return None
    return replace(rule, level=FIELD if verdict.kind == "holds" else UNDECIDED)


def named(rules: Iterable[Rule], taken: Iterable[str] = ()) -> tuple[Rule, ...]:
    """Return rules with names made of their operators, unique and in order."""
    used = set(taken)
    found = []
    for rule in rules:
        words = [term.op for term in subterms(rule.lhs) if not isinstance(term, Var)]
        stem = "_of_".join(words[:3])
        number = 1
        while f"{stem}_{number}" in used:
            number += 1
        used.add(f"{stem}_{number}")
        found.append(replace(rule, name=f"{stem}_{number}"))
    return tuple(found)
