"""The exact tester: both sides of a rule on many legal shapes, over several fields."""

from dataclasses import dataclass
from itertools import combinations
from math import log2
from typing import Final, Literal

import numpy as np

from peakfold.graph.rule import Condition, Rule, Term, variables
from peakfold.graph.substitution.dims import IllegalShape
from peakfold.graph.substitution.field import (
    MERSENNE_31,
    MERSENNE_61,
    PAIRS,
    Arithmetic,
    Field,
    Number,
    Undefined,
)
from peakfold.graph.substitution.operators import EXPONENTIAL, MATRIX, OPERATORS, operators_of
from peakfold.graph.substitution.sampling import (
    UNSTRETCHED,
    Sample,
    Sampler,
    concrete,
    matched,
    ranks,
    shape_conditions,
    value_conditions,
    with_conditions,
)
from peakfold.graph.substitution.values import Evaluator

OPERATORS_OF_A_RANK: Final = MATRIX | {"concat", "split", "sum", "mean", "max", "slice", "pad"}
SHAPES: Final = 32
"""Legal shapes on which a rule must hold before it is believed."""

Kind = Literal["holds", "partial", "wrong", "undecided", "vacuous"]


@dataclass(frozen=True)
class Counterexample:
    """Legal inputs on which the two sides differ.

    Attributes:
        sample: the shapes.
        why: what differs, one clause.
        place: index of the element that differs.
        left: its value on the left, modulo the field's prime.
        right: its value on the right.
        values: the inputs, by variable, on the real line.
        legal: whether both sides are legal there and of one shape.
        apart: whether both are legal there and of different shapes.
    """

    sample: Sample
    why: str
    place: tuple[int, ...] = ()
    left: str = ""
    right: str = ""
    values: str = ""
    legal: bool = True
    apart: bool = False

    def __str__(self) -> str:
        if not self.left:
            return f"{self.sample}: {self.why}"
        place = ", ".join(map(str, self.place))
        return f"{self.sample}: element ({place}) is {self.left} on the left, {self.right} on the right"


@dataclass(frozen=True)
class Verdict:
    """What the exact test says.

    Attributes:
        kind: ``holds``; ``partial`` where the left side is legal for shapes for which the right is not;
            ``wrong`` where both are legal and differ; ``undecided`` where functions that exact arithmetic
            knows nothing of keep the sides apart and real numbers do not; ``vacuous`` where no
            legal shapes are found.
        shapes: on how many different legal shapes both sides were compared.
        error_bits: minus log2 of the probability that two different sides pass.
        counterexample: where they differ.
    """

    kind: Kind
    shapes: int
    error_bits: int = 0
    counterexample: Counterexample | None = None


def fields_of(rule: Rule) -> tuple[Field, ...]:
    """Return the fields over which a rule is tested."""
    used = operators_of(rule.lhs + rule.rhs)
    return PAIRS if used & EXPONENTIAL else (MERSENNE_61, MERSENNE_31)


def examine(rule: Rule, seed: int = 0, count: int = SHAPES) -> Verdict:
    """Compare both sides of a rule on random legal shapes and values.

    Args:
        rule: whose terms have been checked.
        seed: of shapes and values.
        count: of shapes at each rank.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> examine(parse_rule("r: sub(a, b) => sub(b, a)")).kind
        'wrong'
    """
    both = _tested(rule, seed, count, rule.lhs + rule.rhs)
    if both.kind in {"wrong", "vacuous"} or matched(rule) != rule.lhs:
        return both
    left = _tested(rule, seed + 1, count, rule.lhs)
    return left if left.kind in {"wrong", "partial"} else both


def apart(rule: Rule, seed: int = 0, count: int = SHAPES) -> Counterexample | None:
    """Return shapes for which both sides are legal and are of different shapes, None where none are found.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> print(apart(parse_rule("r: sum[axis=0](a) => sum[axis=1](a)")))
        a=[4,3]: the sides have shapes [1, 3] and [4, 1]
    """
    found = _tested(rule, seed, count, rule.lhs + rule.rhs).counterexample
    return found if found is not None and found.apart else None


def excluded(rule: Rule, seed: int = 0, count: int = SHAPES) -> Counterexample | None:
    """Return the first shapes for which the left side is legal and the right is not, or not equal."""
    terms = (rule.lhs, rule.lhs + rule.rhs) if matched(rule) == rule.lhs else (rule.lhs + rule.rhs,)
    found = (_tested(rule, seed, count, each, to_first=True).counterexample for each in terms)
    return next((counterexample for counterexample in found if counterexample is not None), None)


def _tested(rule: Rule, seed: int, count: int, terms: tuple[Term, ...], to_first: bool = False) -> Verdict:
    sampler = Sampler(rule, seed, terms)
    fields = fields_of(rule)
    seen: set[str] = set()
    tested, opaque, bits = 0, False, 0.0
    partial: Counterexample | None = None
    for rank in ranks(rule):
        for number in range(count):
            sample = sampler.shapes(rank)
            if sample is None:
                break
            math = Arithmetic(fields[number % len(fields)])
            found = _compare(rule, sampler, sample, math)
            if isinstance(found, Counterexample) and found.legal:
                return Verdict("wrong", len(seen) + 1, 0, found)
            if isinstance(found, Counterexample):
                partial = found if partial is None or found.apart > partial.apart else partial
                if to_first:
                    return Verdict("partial", len(seen), 0, partial)
                continue
            seen.add(str(sample))
            tested += 1
            opaque = opaque or found is None
            bits += _bits(rule, sampler, math)
    if partial:
        return Verdict("partial", len(seen), 0, partial)
    if not tested:
        return Verdict("vacuous", 0)
    return Verdict("undecided" if opaque else "holds", len(seen), 0 if opaque else int(bits))


def _bits(rule: Rule, sampler: Sampler, math: Arithmetic) -> float:
    """Bits by which one comparison lowers the error: values drawn from, over the degree (Schwartz-Zippel)."""
    degree = 2 ** min(12, sum(1 for _ in str(rule) if _ == "("))
    return max(0.0, log2(min(math.field.p, sampler.points)) - log2(degree))


@np.errstate(invalid="ignore", over="ignore", divide="ignore")
def _compare(rule: Rule, sampler: Sampler, sample: Sample, math: Arithmetic) -> Counterexample | bool | None:
    """Return where sides differ, True where they are equal, None where only opaque functions differ."""
    inputs, constants = sampler.values(sample, math)
    evaluator = Evaluator(math, inputs, constants)
    try:
        lefts = [evaluator.value(term) for term in rule.lhs]
    except (Undefined, IndexError):
        return True
    try:
        if not sampler.both_sides:
            _require_legal(rule, sample)
        rights = [evaluator.value(term) for term in rule.rhs]
    except Undefined:
        return Counterexample(
            sample, "the right side divides by zero, the left does not", values=_show(inputs)
        )
    except IndexError:
        return Counterexample(sample, "the right side reads outside of a tensor", legal=False)
    except IllegalShape as reason:
        return Counterexample(sample, f"the right side is not legal: {reason}", legal=False)
    return _judge(rule, sampler, sample, lefts, rights, inputs)


def _require_legal(rule: Rule, sample: Sample) -> None:
    typing = concrete(sample.shapes, UNSTRETCHED not in rule.conditions)
    for term in rule.rhs:
        typing.shape(term)


def _judge(
    rule: Rule,
    sampler: Sampler,
    sample: Sample,
    lefts: list[Number],
    rights: list[Number],
    inputs: dict[str, Number],
) -> Counterexample | bool | None:
    for left, right in zip(lefts, rights, strict=True):
        if left.shape != right.shape:
            why = f"the sides have shapes {list(left.shape)} and {list(right.shape)}"
            return Counterexample(sample, why, legal=False, apart=sampler.both_sides)
        differs = left.v != right.v
        if not differs.any():
            continue
        if any(OPERATORS[op].uninterpreted for op in operators_of(rule.lhs + rule.rhs)):
            differs = ~np.isclose(left.f, right.f, rtol=1e-6, atol=1e-9, equal_nan=True)
            if not differs.any():
                return None
        place = tuple(int(i) for i in np.argwhere(differs)[0])
        shown = [f"{n.f[place]:.6g} (residue {n.v[place]})" for n in (left, right)]
        return Counterexample(sample, "values differ", place, shown[0], shown[1], _show(inputs))
    return True


def _show(inputs: dict[str, Number]) -> str:
    return " ".join(f"{name}={np.round(n.f, 3).tolist()}".replace(" ", "") for name, n in inputs.items())


@dataclass(frozen=True)
class Repair:
    """Conditions under which a wrong rule holds, and what each of them excludes."""

    rule: Rule
    verdict: Verdict
    excluded: tuple[tuple[Condition, Counterexample], ...]


def repair(rule: Rule, seed: int = 0) -> Repair | None:
    """Find conditions under which a rule holds.

    Conditions on values are added one by one, those on shapes all at once from symbolic shapes: of sides that
    are legal, and where that is not enough, of sides of one shape. Then each is dropped that the rule holds
    without. For each that stays there is a counterexample without it.

    Returns:
        None if no such conditions make it right.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> wrong = parse_rule("r: relu(scale[by=s](a)) => scale[by=s](relu(a))")
        >>> print(repair(wrong).rule)
        r: relu(scale[by=s](a)) => scale[by=s](relu(a)) when positive(s)
    """
    found = conditioned(rule, seed) or conditioned(rule, seed, of_one_shape=True)
    if found is None:
        return None
    added = found.conditions[len(rule.conditions) :]
    excluded = tuple((c, without) for c, without in exclusions(found, seed) if c in added and without)
    return Repair(found, examine(found, seed), excluded)


def conditioned(rule: Rule, seed: int = 0, of_one_shape: bool = False) -> Rule | None:
    """Return a rule with the conditions that it needs, None if none make it right.

    Args:
        rule: that is wrong, or is right for some shapes only.
        seed: of shapes and values.
        of_one_shape: whether those are offered too that make the sides of one shape.
    """
    found = _strengthened(rule, seed, of_one_shape)
    return None if found is None else _weakened(found, rule.conditions, seed)


def _strengthened(rule: Rule, seed: int, of_one_shape: bool) -> Rule | None:
    verdict = examine(rule, seed)
    if verdict.kind == "wrong":
        found = _with_values(rule, seed)
        if found is None:
            return None
        rule, verdict = found, examine(found, seed)
    if verdict.kind != "partial":
        return rule if verdict.kind != "vacuous" else None
    for rank in ranks(rule):
        try:
            candidates = shape_conditions(rule, rank, of_one_shape)
        except IllegalShape:
            continue
        if OPERATORS_OF_A_RANK & operators_of(rule.lhs + rule.rhs):
            candidates = [Condition("rank", (variables(rule.lhs)[0], rank)), *candidates]
        stronger = with_conditions(rule, *candidates)
        if examine(stronger, seed).kind in {"holds", "undecided"}:
            return stronger
    return None


def _with_values(rule: Rule, seed: int) -> Rule | None:
    candidates = value_conditions(rule)
    for count in (1, 2, 3):
        for chosen in combinations(candidates, count):
            stronger = with_conditions(rule, *chosen)
            kinds = {examine(stronger, s).kind for s in (seed, seed + 7)}
            if not kinds & {"wrong", "vacuous"}:
                return stronger
    return None


def _weakened(rule: Rule, given: tuple[Condition, ...], seed: int) -> Rule:
    for condition in reversed(rule.conditions):
        weaker = _without(rule, condition)
        if condition not in given and examine(weaker, seed, SHAPES).kind in {"holds", "undecided"}:
            rule = weaker
    return rule


def _without(rule: Rule, condition: Condition) -> Rule:
    return Rule(
        rule.name, rule.lhs, rule.rhs, tuple(c for c in rule.conditions if c != condition), rule.level
    )


def exclusions(rule: Rule, seed: int = 0) -> tuple[tuple[Condition, Counterexample | None], ...]:
    """Return for each condition of a rule what goes wrong without it; None where nothing was found."""
    return tuple((c, excluded(_without(rule, c), seed, 4 * SHAPES)) for c in rule.conditions)
