"""The exact tester and the prover: what is right, what is wrong, and under which conditions."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from peakfold.graph.rule import FIELD, INDEX, Apply, Rule, Term, Var, parse_rule, subterms, variables
from peakfold.graph.substitution.book import book, generated, laws, taso
from peakfold.graph.substitution.egraph import derives, directions
from peakfold.graph.substitution.operators import OPERATORS
from peakfold.graph.substitution.proving import prove
from peakfold.graph.substitution.taso import read_taso
from peakfold.graph.substitution.testing import examine, exclusions, repair

DATA = Path(__file__).parents[2] / "data" / "taso" / "rules.json"
GROUPED = {"taso_98", "taso_105"}
"""Wrong for grouped convolutions too, though the file does not mark them."""


def test_taso_is_the_file_that_was_decoded() -> None:
    rules, _ = read_taso(DATA.read_text())
    assert rules == taso()


def test_tasos_nine_are_refuted_with_legal_shapes_and_values() -> None:
    rules, marked = read_taso(DATA.read_text())
    verdicts = {rule.name: examine(rule) for rule in rules}
    wrong = {name for name, verdict in verdicts.items() if verdict.kind == "wrong"}
    assert len(marked) == 9
    assert wrong == marked | GROUPED
    for name in wrong:
        found = verdicts[name].counterexample
        assert found is not None
        assert found.legal
        assert found.values


def test_all_of_tasos_other_rules_are_proved() -> None:
    _, marked = read_taso(DATA.read_text())
    for rule in taso():
        assert prove(rule).holds == (rule.name not in marked | GROUPED), rule


def test_the_book_derives_all_of_tasos_sound_rules() -> None:
    rules, marked = read_taso(DATA.read_text())
    known = directions(book())
    for rule in rules:
        assert derives(known, rule, 4, 1500) == (rule.name not in marked | GROUPED), rule


def test_nearly_all_of_the_book_is_proved_and_none_unlabelled() -> None:
    levels = [rule.level for rule in generated()]
    assert set(levels) <= {FIELD, INDEX}
    assert levels.count(INDEX) / len(levels) > 0.95


def test_laws_hold_and_are_proved() -> None:
    for rule in laws():
        assert examine(rule).kind == "holds", rule
        assert prove(rule).holds, rule


def test_stored_rules_hold() -> None:
    for rule in generated()[::4]:
        assert examine(rule, 11, 8).kind in {"holds", "undecided"}, rule


def test_each_condition_of_a_law_excludes_something() -> None:
    for rule in laws():
        for condition, counterexample in exclusions(rule):
            assert counterexample is not None, (rule, condition)


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("r: relu(scale[by=s](a)) => scale[by=s](relu(a))", "positive(s)"),
        ("r: a => div(mul(a, b), b)", "nonzero(b)"),
        (
            "r: concat[axis=1](add(a, b), add(b, c)) => add(concat[axis=1](a, b), concat[axis=1](b, c))",
            "same",
        ),
        ("r: matmul(concat[axis=0](a, b), c) => concat[axis=0](matmul(a, c), matmul(b, c))", "rank(a, 2)"),
    ],
)
def test_a_condition_is_offered(text: str, condition: str) -> None:
    found = repair(parse_rule(text))
    assert found is not None
    assert condition in str(found.rule)
    assert found.verdict.kind == "holds"


def test_what_cannot_be_decided_is_labelled() -> None:
    rule = parse_rule("r: log(mul(exp(a), b)) => add(a, log(b)) when positive(b)")
    assert examine(rule).kind == "undecided"


def test_a_rule_without_legal_shapes_is_vacuous() -> None:
    assert examine(parse_rule("r: slice[axis=1, low=1](sum[axis=1](a)) => a")).kind == "vacuous"


def _mutants(rule: Rule, draw: random.Random) -> Rule:
    """Return a rule one of whose right terms has an operator, operands or a variable changed."""
    nodes = [t for t in subterms(rule.rhs) if isinstance(t, Apply)]
    chosen = draw.choice(nodes)
    same = [
        o.name for o in OPERATORS.values() if o.elementwise and o.arity == len(chosen.args) and not o.attrs
    ]
    if chosen.op in same and draw.random() < 0.6:
        changed = replace(chosen, op=draw.choice([name for name in same if name != chosen.op]))
    else:
        names = [*variables(rule.lhs)]
        args = list(chosen.args)
        args[draw.randrange(len(args))] = Apply("neg", (Var(draw.choice(names)),))
        changed = replace(chosen, args=tuple(args))
    return replace(rule, rhs=tuple(_replaced(term, chosen, changed) for term in rule.rhs), conditions=())


def _replaced(term: Term, old: Term, new: Term) -> Term:
    if term == old or not isinstance(term, Apply):
        return new if term == old else term
    return replace(term, args=tuple(_replaced(arg, old, new) for arg in term.args))


def _differ_in_floats(rule: Rule) -> bool:
    """Return whether sides differ on real numbers, in double precision: the oracle of the mutants."""
    import numpy as np

    from peakfold.graph.substitution.field import MERSENNE_31, Arithmetic
    from peakfold.graph.substitution.sampling import Sampler, ranks
    from peakfold.graph.substitution.values import Evaluator

    sampler = Sampler(rule, 99, rule.lhs + rule.rhs)
    math = Arithmetic(MERSENNE_31)
    for rank in ranks(rule):
        for _ in range(20):
            sample = sampler.shapes(rank)
            if sample is None:
                break
            evaluator = Evaluator(math, *sampler.values(sample, math))
            for left, right in zip(rule.lhs, rule.rhs, strict=True):
                a, b = evaluator.value(left), evaluator.value(right)
                if a.shape == b.shape and not np.allclose(a.f, b.f, rtol=1e-6, atol=1e-9):
                    return True
    return False


def test_a_hundred_seeded_wrong_rules_are_caught() -> None:
    draw = random.Random(0)
    sound = [rule for rule in taso() if "conv" not in str(rule) and "split" not in str(rule)]
    caught = made = 0
    while made < 100:
        mutant = _mutants(draw.choice(sound), draw)
        used = {t.op for t in subterms(mutant.lhs + mutant.rhs) if isinstance(t, Apply)}
        if used & {"div", "reciprocal", "log", "tanh", "exp"} or not _differ_in_floats(mutant):
            continue
        made += 1
        caught += examine(mutant).kind == "wrong" and not prove(mutant).holds
    assert caught == 100
