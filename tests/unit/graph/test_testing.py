"""The exact tester and the prover: what is right, what is wrong, and under which conditions."""

from itertools import islice
from pathlib import Path

import pytest

from benchmarks.wrong import wrong_rules
from peakfold.graph.rule import FIELD, INDEX, parse_rule
from peakfold.graph.substitution.book import book, generated, laws, taso
from peakfold.graph.substitution.derivation import derivation
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
    verdicts = {rule.name: examine(rule, 0, 32 if rule.name in marked | GROUPED else 5) for rule in rules}
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
    for rule in rules:
        sources = derivation(rule, book())
        assert (sources is not None) == (rule.name not in marked | GROUPED), rule


def test_nearly_all_of_the_book_is_proved_and_none_unlabelled() -> None:
    levels = [rule.level for rule in generated()]
    assert set(levels) <= {FIELD, INDEX}
    assert levels.count(INDEX) / len(levels) > 0.95


def test_laws_hold_and_are_proved() -> None:
    for rule in laws():
        assert examine(rule, 0, 12).kind == "holds", rule
        assert prove(rule).holds, rule


def test_stored_rules_hold() -> None:
    for rule in generated()[::8]:
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


def test_a_hundred_seeded_wrong_rules_are_caught() -> None:
    sound = [rule for rule in taso() if "conv" not in str(rule) and "split" not in str(rule)]
    wrong = list(islice(wrong_rules(sound, 0), 100))
    assert sum(examine(rule).kind == "wrong" and not prove(rule).holds for rule in wrong) == 100
