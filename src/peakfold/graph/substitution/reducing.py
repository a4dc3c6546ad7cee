"""Rules of a basis that the others derive, each with the names of those that do."""

from collections.abc import Sequence
from dataclasses import replace

from peakfold.graph.rule import AXIOMS, Rule
from peakfold.graph.substitution.basis import THOROUGH, derived
from peakfold.graph.substitution.derivation import derivation


def redundant(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return the rules that the rest derives for all legal shapes, the last ones first dropped.

    The rest is all rules but those that are returned; none of the certificates names one of them.

    Example:
        >>> from peakfold.graph.rule import parse_rules
        >>> rules = parse_rules('''peakfold rules 1
        ... twice: neg(neg(a)) => a proof index
        ... apart: neg(add(a, b)) => add(neg(a), neg(b)) proof index
        ... mixed: neg(add(neg(a), b)) => add(a, neg(b)) proof index''')
        >>> [(rule.name, rule.sources) for rule in redundant(rules)]
        [('mixed', ('twice', 'apart'))]
    """
    left, dropped = list(rules), list[Rule]()
    for rule in reversed(rules):
        others = [other for other in left if other is not rule]
        if derived(rule, tuple(others), THOROUGH) and derivation(rule, others) is not None:
            left = others
            dropped.append(rule)
    while True:
        certified = [_certified(rule, left) for rule in dropped]
        missing = [rule for rule, found in zip(dropped, certified, strict=True) if found is None]
        if not missing:
            return tuple(rule for rule in certified if rule is not None)
        left += missing
        dropped = [rule for rule in dropped if rule not in missing]


def _certified(rule: Rule, others: Sequence[Rule]) -> Rule | None:
    sources = derivation(rule, others)
    return None if sources is None else replace(rule, level=AXIOMS, sources=sources)
