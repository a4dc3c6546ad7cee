"""Rules as text: printing, reading, reversing, and what is said of a malformed file."""

import pytest

from peakfold.errors import UsageError
from peakfold.graph.rule import parse_rule, parse_rules, print_rules
from peakfold.graph.substitution.book import book, derived, laws, taso
from peakfold.graph.substitution.reading import check_terms, read_rules


def test_rules_print_and_read_back() -> None:
    rules = laws() + taso()
    assert parse_rules(print_rules(rules, "a comment\n\nmore")) == rules


def test_a_rule_reversed_twice_is_itself() -> None:
    for rule in laws():
        assert rule.reversed().reversed() == rule


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two rules have one name"):
        parse_rules("peakfold rules 1\nr: exp(a) => exp(a)\nr: log(a) => log(a)")


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("peakfold rules 2", "line 1, column 1", "this is no rule file"),
        ("", "line 1, column 1", "this is no rule file"),
        ("peakfold rules 1\nr: add(a, b => a", "line 2, column 13", "')' is missing"),
        ("peakfold rules 1\n\nr: add[axis](a) => a", "line 3, column 12", "'=' is missing"),
        ("peakfold rules 1\nr: exp(a) => a ; a", "line 2, column 19", "differ in their number of outputs"),
        ("peakfold rules 1\nr: exp(a) => a proof magic", "line 2, column 22", "no such kind of proof"),
        (
            "peakfold rules 1\nr: exp(a) => a when 3",
            "line 2, column 21",
            "the name of a predicate is missing",
        ),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(text: str, place: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rules(text)
    assert place in caught.value.where
    assert what in caught.value.what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("r: frob(a) => a", "there is no operator frob"),
        ("r: add(a) => a", "add has 1 operands"),
        ("r: sum(a) => a", "sum with attributes none"),
        ("r: exp(a) => a when happy(a)", "there is no predicate happy(a)"),
        ("r: exp(a) => a when one(z, 1)", "one(z, 1) names z"),
        ("r: exp(a):1 => a", "exp has no output 1"),
    ],
)
def test_what_is_not_known_is_named(text: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_terms(parse_rule(text))
    assert what in caught.value.what


@pytest.mark.parametrize(
    ("text", "column", "what"),
    [
        ("frob(a) => a", 4, "there is no operator frob"),
        ("neg(add(a)) => a", 8, "add has 1 operands"),
        ("sum[axis=1](a) => mean(a)", 22, "mean with attributes none"),
        ("conv[stride=0](a, b) => conv(a, b)", 4, "conv with stride=0"),
        ("pad[axis=1, high=99999999999](a) => a", 4, "pad with high=99999999999"),
        ("sum[axis=-1](a) => a", 4, "sum with axis=-1"),
        ("max[axis=q](a) => a", 4, "max with axis=q"),
        ("exp(a):1 => a", 4, "exp has no output 1"),
        ("exp(a) => a when happy(a)", 21, "there is no predicate happy(a)"),
        ("exp(a) => a when rank(2, a)", 21, "there is no predicate rank(2, a)"),
        ("exp(a) => a when one(z, 1)", 21, "one(z, 1) names z"),
        ("neg(" * 60 + "a" + ")" * 60 + " => a", 208, "a term is too deep"),
    ],
)
def test_what_is_not_known_in_a_file_has_its_place(text: str, column: int, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_rules(f"peakfold rules 1\n# add\n\nr: {text}\n")
    assert caught.value.where.startswith(f"line 4, column {column}: r: ")
    assert what in caught.value.what


def test_what_the_book_says_is_known() -> None:
    for rule in (*book(), *derived(), *taso()):
        check_terms(rule)
