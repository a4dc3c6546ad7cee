"""Rules by hand, one line each, by family: text files in the format of `peakfold.graph.rule`."""

from dataclasses import replace
from functools import cache
from importlib.resources import files

from peakfold.graph.rewrite.vocabulary import EXACT
from peakfold.graph.rule import Apply, Rule, Term, constants, parse_rules, size, subterms, variables
from peakfold.graph.substitution.book import book, derived

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


@cache
def book_rules() -> tuple[Rule, ...]:
    """Return the rules of the book and those derived from it, without those that are here by hand.

    Each also from right to left where that can be matched.

    Example:
        >>> len(book_rules()) > 300
        True
    """
    hand = {(rule.lhs, rule.rhs) for rule in hand_rules()}
    names = {rule.name for rule in hand_rules()}
    both = [
        one
        for rule in (*book(), *derived())
        for one in (rule, rule.reversed())
        if one is rule or rule.reversible
    ]
    able = [rule for rule in both if _can_match(rule) and (rule.lhs, rule.rhs) not in hand]
    return tuple(replace(r, name=f"{r.name}_of_book") if r.name in names else r for r in able)


def _can_match(rule: Rule) -> bool:
    """Whether a rule starts from an operator and binds all that its right side and conditions read."""
    bound = {*variables(rule.lhs), *constants(rule.lhs)}
    asked = {arg for condition in rule.conditions for arg in condition.args if isinstance(arg, str)}
    starts = all(isinstance(term, Apply) for term in rule.lhs)
    return starts and {*variables(rule.rhs), *constants(rule.rhs), *asked} <= bound and not _only_grows(rule)


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
