"""Certificates of derived rules: what they name suffices, is needed, and is proved itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from peakfold.errors import CacheError, UsageError
from peakfold.graph.rule import AXIOMS, FIELD, Rule, parse_rule, parse_rules
from peakfold.graph.substitution.basis import modulo_axis
from peakfold.graph.substitution.book import book
from peakfold.graph.substitution.checking import check
from peakfold.graph.substitution.derivation import derivation, is_derived
from peakfold.graph.substitution.deriving import DerivedRequest, derive
from peakfold.graph.substitution.testing import examine

AXIOM_LINES = """peakfold rules 1
twice: neg(neg(a)) => a proof index
apart: neg(add(a, b)) => add(neg(a), neg(b)) proof index
associates: add(add(a, b), c) => add(a, add(b, c)) proof index
"""


def _axioms() -> dict[str, Rule]:
    return {rule.name: rule for rule in parse_rules(AXIOM_LINES)}


def test_a_derivation_names_what_it_needs_and_no_more() -> None:
    axioms = _axioms()
    rule = parse_rule("r: neg(add(neg(a), b)) => add(a, neg(b))")
    sources = derivation(rule, axioms.values())
    assert sources == ("twice", "apart")
    assert is_derived(replace(rule, sources=sources), axioms)
    for name in sources:
        rest = tuple(other for other in sources if other != name)
        assert not is_derived(replace(rule, sources=rest), axioms)


def test_a_wrong_rule_is_not_derived_and_no_certificate_of_it_holds() -> None:
    rule = parse_rule("r: neg(add(neg(a), b)) => add(a, b)")
    assert derivation(rule, _axioms().values()) is None
    assert not is_derived(replace(rule, sources=("twice", "apart")), _axioms())


def test_what_is_only_tested_derives_nothing() -> None:
    axioms = {name: replace(rule, level=FIELD) for name, rule in _axioms().items()}
    rule = parse_rule("r: neg(add(neg(a), b)) => add(a, neg(b)) proof axioms from twice, apart")
    assert derivation(rule, axioms.values()) is None
    assert not is_derived(rule, axioms)
    assert not is_derived(rule, {})


def test_a_derivation_covers_every_way_to_stretch() -> None:
    law = parse_rule("stays: sum[axis=0](neg(a)) => neg(sum[axis=0](a)) proof index")
    joined = parse_rule("joined: concat[axis=0](neg(a), neg(b)) => neg(concat[axis=0](a, b)) proof index")
    narrow = parse_rule("r: add(concat[axis=0](neg(a), neg(b)), c) => add(neg(concat[axis=0](a, b)), c)")
    assert derivation(narrow, (law, joined)) == ("joined",)
    # the operands of the sums have to be of one size, which the left side does not ask of them
    wide = parse_rule(
        "r: concat[axis=0](add(a, b), add(c, d)) => add(concat[axis=0](a, c), concat[axis=0](b, d))"
    )
    assert derivation(wide, book()) is None
    alike = replace(wide, conditions=parse_rule(
        "r: add(a, b) => add(c, d) when same_shape(a, b), same_shape(c, d)").conditions)  # fmt: skip
    assert derivation(alike, book()) == ("concat_of_sums_0",)


def test_the_text_of_a_certificate_is_read_back() -> None:
    line = "r: neg(neg(a)) => a when rank(a, 2) proof axioms from one, two"
    assert str(parse_rule(line)) == line
    assert parse_rule(line).sources == ("one", "two")
    assert parse_rule(line).level == AXIOMS
    with pytest.raises(UsageError, match="column 43"):
        parse_rule("r: neg(neg(a)) => a proof axioms from one,")


def test_a_claim_that_cannot_be_checked_again_is_said() -> None:
    rules = parse_rules(
        AXIOM_LINES + "good: neg(neg(neg(a))) => neg(a) proof axioms from twice\n"
        "bold: mul(relu(a), relu(a)) => mul(relu(a), a) proof axioms from apart\n"
    )
    found = check(rules)
    assert [finding.level == AXIOMS for finding in found.findings][-2:] == [True, False]
    assert found.figures["unproved_claims"] == 1
    assert "bold claims a proof by axioms from apart" in found.findings[-1].lines[0]


def test_deriving_is_repeatable_and_goes_on_after_an_interruption(tmp_path: Path) -> None:
    request = DerivedRequest(("add", "neg", "relu"), 3, 0, 6)
    part = tmp_path / "derived.part"

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        derive(request, book(), part, stop)
    resumed, whole = derive(request, book(), part), derive(request, book())
    assert resumed.text(request) == whole.text(request)
    assert not part.exists()
    assert len(whole.rules) == 6
    axioms = {rule.name: rule for rule in book()}
    for rule in whole.rules[::2]:
        assert len(rule.sources) > 1
        assert is_derived(rule, axioms)
        assert examine(rule, 5, 4).kind == "holds"


def test_a_broken_checkpoint_is_said(tmp_path: Path) -> None:
    part = tmp_path / "derived.part"
    part.write_text("{")
    with pytest.raises(CacheError, match="delete the file"):
        derive(DerivedRequest(("neg",), 2), book(), part)


def test_rules_that_differ_in_axes_count_once() -> None:
    lines = [f"r: concat[axis={k}](relu(a), relu(b)) => relu(concat[axis={k}](a, b))" for k in (0, 1)]
    lines += [f"r: sum[axis={k}](sum[axis={j}](a)) => sum[axis={j}](sum[axis={k}](a))"
              for k, j in ((0, 1), (1, 0), (1, 1))]  # fmt: skip
    assert modulo_axis(map(parse_rule, lines)) == 3
