"""Rules by hand, one line each, by family: text files in the format of `peakfold.graph.rule`."""

from functools import cache
from importlib.resources import files

from peakfold.graph.rewrite.vocabulary import EXACT
from peakfold.graph.rule import Apply, Rule, Term, parse_rules, size, subterms

FAMILIES = ("linear", "windows", "movement")
ONE_WAY = "_once"
"""How the name of a rule ends that is of no use from right to left."""


@cache
def hand_rules() -> tuple[Rule, ...]:
    """Return all rules, each also from right to left where that can be matched.

    Example:
        >>> next(str(rule) for rule in hand_rules() if rule.name == "trace_of_product")
        'trace_of_product: trace(matmul(a, b)) => total(mul(a, transpose(b)))'
    """
    rules = [rule for family in FAMILIES for rule in _family(family)]
    back = [rule.reversed() for rule in rules if rule.reversible and not rule.name.endswith(ONE_WAY)]
    return (*rules, *(rule for rule in back if isinstance(rule.lhs[0], Apply) and not _only_grows(rule)))


def _only_grows(rule: Rule) -> bool:
    """Whether a rule says the same words more often."""
    return _words(rule.lhs) == _words(rule.rhs) and size(rule.rhs) > size(rule.lhs)


def _words(terms: tuple[Term, ...]) -> frozenset[str]:
    return frozenset(term.op for term in subterms(terms) if isinstance(term, Apply))


def _family(name: str) -> tuple[Rule, ...]:
    return parse_rules(files(__package__).joinpath(f"{name}.rules").read_text(encoding="utf-8"))


def keeps_bits(rule: Rule) -> bool:
    """Whether a rule rounds nothing anew: all of its words only move, choose or negate numbers.

    Example:
        >>> [rule.name for rule in hand_rules() if keeps_bits(rule)][:2]
        ['rectified_cut', 'rectified_twice']
    """
    return _words((*rule.lhs, *rule.rhs)) <= EXACT
