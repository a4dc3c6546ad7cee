"""The stored book: its page, its derived rules and their certificates."""

from pathlib import Path

from peakfold.graph.rule import AXIOMS, INDEX
from peakfold.graph.substitution import reducing
from peakfold.graph.substitution.basis import modulo_axis
from peakfold.graph.substitution.book import book, derived, found, laws, redundant, taso, text_of
from peakfold.graph.substitution.derivation import PROVED, is_derived

PAGE = Path(__file__).parents[3] / "docs" / "rulebook.md"


def test_the_page_has_every_rule_of_the_basis_and_tasos_wrong_ones() -> None:
    text = PAGE.read_text()
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("- `")][:-1] == [f"- `{rule}`" for rule in book()]
    assert text.count("  - without") == sum(len(rule.conditions) for rule in book())
    assert "no counterexample found" not in text
    wrong = {line.split(":")[0].removeprefix("| `") for line in lines if line.startswith("| `taso_")}
    assert wrong == {f"taso_{n}" for n in (98, 99, 100, 105, 125, 126, 127, 128, 129, 130, 131)}
    assert f"{len(derived())} rules of `redundant.rules`, `derived.rules` and `graphs.rules`" in text


def test_names_are_unique_and_sources_are_proved_rules_of_the_basis() -> None:
    names = [rule.name for rule in (*book(), *derived(), *taso())]
    assert len(set(names)) == len(names)
    proved = {rule.name for rule in book() if rule.level in PROVED}
    for rule in derived():
        assert rule.level == AXIOMS
        assert len(set(rule.sources)) == len(rule.sources) >= (1 if len(rule.lhs) > 1 else 2)
        assert set(rule.sources) <= proved


def test_products_that_share_an_operand_are_one_product() -> None:
    """Each output alone is legal for more shapes: graphs are compared where all outputs are legal."""
    texts = [str(rule) for rule in derived() if len(rule.lhs) > 1]
    product = "split[axis=1](matmul(a, concat[axis=1](b, c)), b, c):0 => matmul(a, c) ; matmul(a, b)"
    assert any(product in text for text in texts)


def test_derived_rules_are_derived_anew() -> None:
    axioms = {rule.name: rule for rule in book()}
    assert len(derived()) >= 1000
    for rule in derived()[::12]:
        assert is_derived(rule, axioms), rule


def test_no_rule_of_the_basis_follows_from_the_others_for_all_shapes() -> None:
    """What the others derive is recorded with those that do; searching anew finds the same rules."""
    assert reducing.redundant(found()) == redundant()
    assert {rule.name for rule in (*book(), *redundant())} == {rule.name for rule in found()}
    assert not reducing.redundant(book())


def test_counts_of_the_book() -> None:
    assert all(rule.level == INDEX for rule in laws())
    assert modulo_axis(book()) <= len(book())
    rules = (*book(), *derived())
    assert sum(rule.level in PROVED for rule in rules) / len(rules) > 0.95
    assert (
        sum(
            len(text_of(f"{name}.rules"))
            for name in ("laws", "generated", "core", "redundant", "derived", "graphs")
        )
        < 300_000
    )
