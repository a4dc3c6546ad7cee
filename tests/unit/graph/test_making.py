"""The stored book is what the generator makes: its files come again byte for byte."""

from pathlib import Path

import pytest

from peakfold.graph.rule import parse_rules
from peakfold.graph.substitution.book import DERIVED, REDUNDANT, book, found, redundant, text_of
from peakfold.graph.substitution.deriving import DerivedRequest, derive
from peakfold.graph.substitution.generate import Request
from peakfold.graph.substitution.making import Parts, make_book, reduced

FEW = DerivedRequest(("add", "neg", "relu"), 3, most=3)
SMALL = Parts(Request(("neg", "relu"), 2), Request(("neg", "transpose"), 2), FEW, DerivedRequest(("neg",), 2))


def test_the_first_derived_rules_of_the_book_are_derived_again() -> None:
    stored = parse_rules(text_of(DERIVED))
    assert derive(DerivedRequest(most=8), book(), dropped=redundant()).rules == stored[:8]


def test_the_file_of_redundant_rules_is_written_from_its_rules() -> None:
    assert reduced(found(), redundant()) == text_of(REDUNDANT)


def test_no_derived_rule_is_one_of_the_basis_or_redundant() -> None:
    sides = {(rule.lhs, rule.rhs) for rule in found()}
    assert not [rule.name for rule in parse_rules(text_of(DERIVED)) if (rule.lhs, rule.rhs) in sides]


def test_a_book_is_made_again_byte_for_byte_after_an_interruption(tmp_path: Path) -> None:
    def stop(line: str) -> None:
        if "core.rules is made" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_book(tmp_path / "one", SMALL, stop)
    for name in ("one", "two"):
        make_book(tmp_path / name, SMALL)
    files = [{file.name: file.read_bytes() for file in (tmp_path / n).iterdir()} for n in ("one", "two")]
    assert files[0] == files[1]
    assert set(files[0]) == {
        f"{name}.rules" for name in ("generated", "core", "redundant", "derived", "graphs")
    }
    assert b"\nneg_of_neg_1: " in files[0]["generated.rules"]
