"""Checking a rule file: each rule is tested, proved, and offered the conditions that it lacks."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from peakfold.graph.rule import AXIOMS, FIELD, INDEX, LEVELS, UNDECIDED, UNLABELLED, Rule
from peakfold.graph.substitution.basis import derived, modulo_axis
from peakfold.graph.substitution.derivation import PROVED, is_derived
from peakfold.graph.substitution.proving import prove
from peakfold.graph.substitution.reading import check_terms
from peakfold.graph.substitution.rewriting import order
from peakfold.graph.substitution.testing import Repair, Verdict, apart, examine, exclusions, repair


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
        """What is worth a word: nothing of a rule that holds and earns the proof that it claims."""
        if self.holds and self._earns_another:
            claimed, earned = (_WORDS[level] for level in (self.rule.level, self.level))
            sources = f" from {', '.join(self.rule.sources)}" if self.rule.sources else ""
            return (f"{self.rule.name} claims a proof by {claimed}{sources}; it has one by {earned}",)
        if self.holds:
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

    @property
    def lacks_proof(self) -> bool:
        """Whether the rule claims to be proved and is not."""
        return self.rule.level in PROVED and self.level not in PROVED

    @property
    def holds(self) -> bool:
        """Whether the rule holds as it stands: by the exact test, or by a proof where no test decides."""
        return self.verdict.kind == "holds" or (self.verdict.kind == "undecided" and self.level in PROVED)

    @property
    def _earns_another(self) -> bool:
        return self.lacks_proof or (self.rule.level == AXIOMS and self.level != AXIOMS)


@dataclass(frozen=True)
class Checked:
    """What is found of a rule file.

    Attributes:
        findings: of each rule.
        basis: the sound rules that no smaller one derives.
    """

    findings: tuple[Finding, ...]
    basis: tuple[Rule, ...]

    @property
    def figures(self) -> dict[str, object]:
        """Counts: sound ones hold wherever both sides are legal; by level of certificate."""
        kinds = Counter(finding.verdict.kind for finding in self.findings)
        levels = Counter(finding.level for finding in self.findings)
        return {
            "rules": len(self.findings),
            "basis": len(self.basis),
            "basis_modulo_axis": modulo_axis(self.basis),
            "sound": sum(finding.holds for finding in self.findings) + kinds["partial"],
            "unsound": kinds["wrong"],
            "unlabelled": levels[UNLABELLED] - kinds["wrong"],
            "undecided": levels[UNDECIDED],
            "by_field": levels[FIELD],
            "by_index": levels[INDEX],
            "by_axioms": levels[AXIOMS],
            "unproved_claims": sum(finding.lacks_proof for finding in self.findings),
            "conditional": kinds["partial"],
        }


def check(rules: tuple[Rule, ...], seed: int = 0, known: tuple[Rule, ...] = ()) -> Checked:
    """Test and prove rules anew.

    Args:
        rules: in their order; a rule may be derived from those before it that are proved.
        seed: of shapes and values.
        known: rules from which they may be derived too.

    Raises:
        UsageError: a rule names an operator, an attribute or a predicate that is not known.
    """
    for rule in rules:
        check_terms(rule)
    axioms = {rule.name: rule for rule in known}
    findings = []
    for rule in rules:
        finding = found(rule, seed, axioms)
        axioms[rule.name] = replace(rule, level=finding.level)
        findings.append(finding)
    sound = (f.rule for f in findings if (f.holds or f.verdict.kind == "partial") and f.level != AXIOMS)
    return Checked(tuple(findings), _basis(tuple(sound)))


def found(rule: Rule, seed: int = 0, axioms: Mapping[str, Rule] | None = None) -> Finding:
    """Return what is found of a rule.

    Args:
        rule: whose terms have been checked.
        seed: of shapes and values.
        axioms: rules that it may be derived from, by name.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> finding = found(parse_rule("r: sub(a, b) => sub(b, a)"))
        >>> finding.verdict.kind, finding.level, finding.repaired
        ('wrong', 0, None)
    """
    verdict = examine(rule, seed)
    unlike = apart(rule, seed) if verdict.kind == "partial" else None
    if unlike is not None:
        verdict = replace(verdict, kind="wrong", counterexample=unlike)
    repaired = repair(rule, seed) if verdict.kind in {"wrong", "partial"} else None
    return Finding(rule, verdict, _level(rule, verdict, axioms or {}), repaired)


_WORDS = {level: word for word, level in LEVELS.items()} | {UNLABELLED: "nothing"}


def _level(rule: Rule, verdict: Verdict, axioms: Mapping[str, Rule]) -> int:
    if verdict.kind in {"wrong", "vacuous"}:
        return UNLABELLED
    if rule.sources and is_derived(rule, axioms):
        return AXIOMS
    if prove(rule).holds:
        return INDEX
    return UNDECIDED if verdict.kind == "undecided" else FIELD


def _basis(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return the rules that are left when each is dropped that smaller ones derive."""
    kept: list[Rule] = []
    for rule in sorted(rules, key=lambda rule: tuple(map(order, rule.lhs))):
        if not derived(rule, tuple(kept)):
            kept.append(rule)
    return tuple(kept)


def shown(rule: Rule, seed: int = 0, known: tuple[Rule, ...] = ()) -> tuple[str, ...]:
    """Return lines that say what a rule is, how it is known, and what its conditions exclude.

    Args:
        rule: to show.
        seed: of shapes and values.
        known: rules that it may be derived from.
    """
    finding = found(rule, seed, {axiom.name: axiom for axiom in known})
    verdict = finding.verdict
    lines = [
        str(rule),
        f"  test: {verdict.kind} on {verdict.shapes} shapes, error at most 2^-{verdict.error_bits}",
        f"  proof: {_WORDS[finding.level]}",
        f"  may be read backwards: {'yes' if rule.reversible else 'no'}",
    ]
    for condition, without in exclusions(rule, seed):
        lines.append(f"  without {condition}: {without or 'no counterexample found'}")
    return (*lines, *finding.lines[1:])
