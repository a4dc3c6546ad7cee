"""Rules of the book on random legal shapes: both sides, exactly, in a prime field."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from peakfold.graph.rule import Rule
from peakfold.graph.substitution.book import book, derived, taso
from peakfold.graph.substitution.field import Arithmetic, Undefined
from peakfold.graph.substitution.operators import OPERATORS, operators_of
from peakfold.graph.substitution.sampling import Sampler, ranks
from peakfold.graph.substitution.testing import fields_of
from peakfold.graph.substitution.values import Evaluator

RULES = [
    rule
    for rule in (*book(), *derived())
    if not any(OPERATORS[op].uninterpreted for op in operators_of(rule.lhs + rule.rhs))
]
WRONG = [rule for rule in taso() if rule.name in {"taso_99", "taso_125", "taso_127"}]


def _differs(rule: Rule, seed: int) -> bool | None:
    """Return whether sides differ on the shapes and values of a seed; None where there are none."""
    sampler = Sampler(rule, seed, rule.lhs + rule.rhs)
    options = ranks(rule)
    sample = sampler.shapes(options[seed % len(options)])
    if sample is None:
        return None
    fields = fields_of(rule)
    math = Arithmetic(fields[seed % len(fields)])
    evaluator = Evaluator(math, *sampler.values(sample, math))
    try:
        sides = [(evaluator.value(a), evaluator.value(b)) for a, b in zip(rule.lhs, rule.rhs, strict=True)]
    except (Undefined, IndexError):
        return None
    return not all(a.shape == b.shape and np.array_equal(a.v, b.v) for a, b in sides)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(RULES) - 1), st.integers(0, 10**6))
def test_a_rule_of_the_book_holds(number: int, seed: int) -> None:
    found = _differs(RULES[number], seed)
    assume(found is not None)
    assert not found, (RULES[number], seed)


def test_the_same_check_finds_wrong_rules() -> None:
    for rule in WRONG:
        assert any(_differs(rule, seed) for seed in range(60)), rule
