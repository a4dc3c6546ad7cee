"""Level 3 certificates: the rules that derive a rule by equality saturation, in every way to be legal.

The rules that are used are axioms that model shapes: each joins two classes only where its condition is known
to hold of their symbolic shapes and what it makes is surely legal there. A certificate is their names.
Checking it is deriving the rule anew from these alone.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from peakfold.graph.rule import AXIOMS, INDEX, Rule
from peakfold.graph.substitution.egraph import directions, saturate
from peakfold.graph.substitution.operators import operators_of
from peakfold.graph.substitution.proving import cases

PROVED: Final = frozenset({INDEX, AXIOMS})
"""Levels of rules from which others may be derived."""

MADE_OF: Final[Mapping[str, frozenset[str]]] = {
    "conv_relu": frozenset({"conv", "relu", "add"}),
    "conv": frozenset({"add"}),
    "matmul": frozenset({"add"}),
    "softmax": frozenset({"exp", "div", "sum"}),
    "sub": frozenset({"add", "neg"}),
    "div": frozenset({"mul", "reciprocal"}),
}
"""What operators are made of, and the sums that products come apart into: axioms over these are tried too."""

ROUNDS, MOST_NODES, MOST_CASES = 4, 600, 40


def derivation(
    rule: Rule, axioms: Iterable[Rule], rounds: int = ROUNDS, most: int = MOST_NODES
) -> tuple[str, ...] | None:
    """Return the names of axioms that derive a rule for all legal shapes, None where it is not derived.

    None of the names can be left out.

    Args:
        rule: what to derive.
        axioms: rules that are proved; only those over the rule's own operators are used, and over what these
            are made of.
        rounds: of equality saturation at most.
        most: nodes of a graph at most.

    Example:
        >>> from peakfold.graph.rule import parse_rules
        >>> axioms = parse_rules('''peakfold rules 1
        ... twice: neg(neg(a)) => a proof index
        ... apart: neg(add(a, b)) => add(neg(a), neg(b)) proof index
        ... associates: add(add(a, b), c) => add(a, add(b, c)) proof index''')
        >>> from peakfold.graph.rule import parse_rule
        >>> derivation(parse_rule("r: neg(add(neg(a), b)) => add(a, neg(b))"), axioms)
        ('twice', 'apart')
    """
    used = operators_of(rule.lhs + rule.rhs)
    used |= frozenset().union(*(MADE_OF.get(op, frozenset()) for op in used))
    near = tuple(r for r in axioms if r.level in PROVED and operators_of(r.lhs + r.rhs) <= used)
    found = _used(rule, near, rounds, most)
    if found is None:
        return None
    kept = [r for r in near if r.name in found]
    for axiom in tuple(reversed(kept)):
        others = [r for r in kept if r is not axiom]
        if _used(rule, tuple(others), rounds, most) is not None:
            kept = others
    return tuple(r.name for r in kept)


def is_derived(rule: Rule, axioms: Mapping[str, Rule]) -> bool:
    """Return whether the certificate of a rule holds: the rules that it names are proved and derive it."""
    named = [axioms.get(name) for name in rule.sources]
    known = tuple(axiom for axiom in named if axiom is not None and axiom.level in PROVED)
    if len(known) < len(named):
        return False
    return _used(rule, known, ROUNDS, MOST_NODES) is not None


def _used(rule: Rule, axioms: tuple[Rule, ...], rounds: int, most: int) -> frozenset[str] | None:
    """Return the names of the axioms used in any way to be legal, None where one way is not derived."""
    ways = directions(axioms)
    found: frozenset[str] = frozenset()
    for number, typing in enumerate(cases(rule)):
        if typing is None or number >= MOST_CASES:
            return None
        here = saturate(ways, rule, typing, rounds, most)
        if here is None:
            return None
        found |= here
    return found
