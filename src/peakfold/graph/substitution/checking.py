"""Checking a rule file: each rule is tested, proved, and offered the conditions that it lacks."""

from collections import Counter
from dataclasses import dataclass

from peakfold.graph.rule import FIELD, INDEX, LEVELS, UNDECIDED, UNLABELLED, Rule
from peakfold.graph.substitution.basis import derived
from peakfold.graph.substitution.proving import prove
from peakfold.graph.substitution.rewriting import order
from peakfold.graph.substitution.sampling import check_terms
from peakfold.graph.substitution.testing import Repair, Verdict, examine, exclusions, repair


@dataclass(frozen=True)
class Finding:
    """What is found of one rule.

    Attributes:
        rule: as it was read.
        verdict: of the exact test.
        level: the certificate that it earns.
        repaired: with the conditions that it lacks, where some make it right.
    """

    rule: Rule
    verdict: Verdict
    level: int
    repaired: Repair | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """What is worth a word: nothing of a rule that holds as it stands."""
        if self.verdict.kind == "holds":
            return ()
        words = {"wrong": "is wrong", "partial": "needs a condition", "undecided": "is undecided"}
        found = [f"{self.rule.name} {words.get(self.verdict.kind, 'has no legal shapes')}: {self.rule}"]
        if self.verdict.counterexample is not None:
            found.append(f"  on {self.verdict.counterexample}")
            if self.verdict.counterexample.values:
                found.append(f"  with {self.verdict.counterexample.values}")
        if self.repaired is not None:
            added = self.repaired.rule.conditions[len(self.rule.conditions) :]
            found.append(f"  holds when {', '.join(map(str, added))}")
        return tuple(found)


@dataclass(frozen=True)
class Checked:
    """What is found of a rule file."""

    findings: tuple[Finding, ...]
    basis: int

    @property
    def figures(self) -> dict[str, object]:
        """Counts: sound ones hold wherever both sides are legal; by level of certificate."""
        kinds = Counter(finding.verdict.kind for finding in self.findings)
        levels = Counter(finding.level for finding in self.findings)
        return {
            "rules": len(self.findings),
            "basis": self.basis,
            "sound": kinds["holds"] + kinds["partial"],
            "unsound": kinds["wrong"],
            "unlabelled": levels[UNLABELLED] - kinds["wrong"],
            "undecided": levels[UNDECIDED],
            "by_field": levels[FIELD],
            "by_index": levels[INDEX],
            "conditional": kinds["partial"],
        }


def check(rules: tuple[Rule, ...], seed: int = 0) -> Checked:
    """Test and prove rules anew.

    Raises:
        UsageError: a rule names an operator, an attribute or a predicate that is not known.
    """
    for rule in rules:
        check_terms(rule)
    findings = tuple(found(rule, seed) for rule in rules)
    sound = tuple(f.rule for f in findings if f.verdict.kind in {"holds", "partial"})
    return Checked(findings, _basis(sound))


def found(rule: Rule, seed: int = 0) -> Finding:
    """Return what is found of a rule.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> finding = found(parse_rule("r: sub(a, b) => sub(b, a)"))
        >>> finding.verdict.kind, finding.level, finding.repaired
        ('wrong', 0, None)
    """
    verdict = examine(rule, seed)
    repaired = repair(rule, seed) if verdict.kind in {"wrong", "partial"} else None
    return Finding(rule, verdict, _level(rule, verdict), repaired)


def _level(rule: Rule, verdict: Verdict) -> int:
    if verdict.kind in {"wrong", "vacuous"}:
        return UNLABELLED
    if prove(rule).holds:
        return INDEX
    return UNDECIDED if verdict.kind == "undecided" else FIELD


def _basis(rules: tuple[Rule, ...]) -> int:
    """Return how many rules are left when each is dropped that smaller ones derive."""
    kept: list[Rule] = []
    for rule in sorted(rules, key=lambda rule: tuple(map(order, rule.lhs))):
        if not derived(rule, tuple(kept)):
            kept.append(rule)
    return len(kept)


def shown(rule: Rule, seed: int = 0) -> tuple[str, ...]:
    """Return lines that say what a rule is, how it is known, and what its conditions exclude."""
    finding = found(rule, seed)
    proofs = {level: word for word, level in LEVELS.items()}
    verdict = finding.verdict
    lines = [
        str(rule),
        f"  test: {verdict.kind} on {verdict.shapes} shapes, error at most 2^-{verdict.error_bits}",
        f"  proof: {proofs.get(finding.level, 'none')}",
        f"  may be read backwards: {'yes' if rule.reversible else 'no'}",
    ]
    for condition, without in exclusions(rule, seed):
        lines.append(f"  without {condition}: {without or 'no counterexample found'}")
    return (*lines, *finding.lines[1:])
