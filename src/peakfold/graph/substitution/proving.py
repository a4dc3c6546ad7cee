"""Level 2 certificates: one normal form on both sides, in every way in which the shapes can be legal."""

from collections.abc import Iterator
from dataclasses import dataclass

from peakfold.graph.rule import Apply, Rule, Term, subterms
from peakfold.graph.substitution.dims import Dim, IllegalShape, symbol
from peakfold.graph.substitution.normal import Normalizer
from peakfold.graph.substitution.operators import MATRIX, OPERATORS, SPATIAL, operators_of
from peakfold.graph.substitution.places import Places
from peakfold.graph.substitution.sampling import ranks, typed
from peakfold.graph.substitution.shapes import OPAQUE, Typing

_MOST_CASES = 800


@dataclass(frozen=True)
class Proof:
    """What index notation says of a rule.

    Attributes:
        holds: whether every case is proved.
        cases: how many ways to be legal were looked at.
    """

    holds: bool
    cases: int


class _Script:
    """Makes every sequence of choices in turn."""

    def __init__(self) -> None:
        self._chosen: list[tuple[int, int]] = []
        self._at = 0

    def choose(self, options: tuple[str, ...]) -> str:
        if self._at == len(self._chosen):
            self._chosen.append((0, len(options)))
        self._at += 1
        return options[self._chosen[self._at - 1][0]]

    def advance(self) -> bool:
        self._chosen = self._chosen[: self._at]
        self._at = 0
        while self._chosen and self._chosen[-1][0] + 1 == self._chosen[-1][1]:
            self._chosen.pop()
        if not self._chosen:
            return False
        last, count = self._chosen[-1]
        self._chosen[-1] = (last + 1, count)
        return True


def proof_ranks(rule: Rule) -> tuple[int, ...]:
    """Return the ranks at which a proof is one for every rank that the rule allows.

    On an axis that no operator names, each works place by place, so that a rule holds with such axes if it
    holds without them. Two spatial axes stand for any number of them.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> proof_ranks(parse_rule("r: add(a, b) => add(b, a)"))
        (1,)
    """
    allowed = ranks(rule)
    terms = rule.lhs + rule.rhs
    used = operators_of(terms)
    named = [
        t.attr("axis")
        for t in subterms(terms)
        if isinstance(t, Apply) and OPERATORS[t.op].attrs.get("axis", 0) is None
    ]
    named += [arg for c in rule.conditions if c.name != "rank" for arg in c.args if isinstance(arg, int)]
    if used & SPATIAL or any(c.name == "rank" for c in rule.conditions):
        return allowed
    if used & MATRIX:
        return allowed if named else (2,)
    return (max(named, default=0) + 1,)


def cases(rule: Rule) -> Iterator[Typing | None]:
    """Yield symbolic shapes for every way to be legal, which together stand for all legal shapes.

    None stands for a way of which cannot be said what it asks of the sizes, and for all that are left when
    there are too many.
    """
    ways = 0
    for rank in proof_ranks(rule):
        script = _Script()
        while True:
            ways += 1
            if ways > _MOST_CASES:
                yield None
                return
            try:
                yield typed(rule, rule.lhs + rule.rhs, rank, script.choose, (OPAQUE,))
            except IllegalShape as reason:
                if "no simple answer" in str(reason):
                    yield None
            if not script.advance():
                break


def prove(rule: Rule) -> Proof:
    """Prove a rule for all sizes, for every rank, stretching and grouping that its operators leave open.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> prove(parse_rule("r: matmul(matmul(a, b), c) => matmul(a, matmul(b, c))"))
        Proof(holds=True, cases=1)
    """
    positive = frozenset(str(c.args[0]) for c in rule.conditions if c.name == "positive")
    number = 0
    for typing in cases(rule):
        number += 1
        if typing is None or not _holds(rule, typing, positive):
            return Proof(False, number)
    return Proof(number > 0, number)


def _holds(rule: Rule, typing: Typing, positive: frozenset[str]) -> bool:
    return all(
        same_everywhere(left, right, typing, positive) for left, right in zip(rule.lhs, rule.rhs, strict=True)
    )


def same_everywhere(lhs: Term, rhs: Term, typing: Typing, positive: frozenset[str]) -> bool:
    """Return whether two terms of one shape have the same normal form at every place."""
    left, right = typing.shape(lhs), typing.shape(rhs)
    left, right = typing.found(left), typing.found(right)
    if left != right:
        return False
    places = Places(typing.solver)
    index = tuple(Dim(0) if size == Dim(1) else _output(places, axis) for axis, size in enumerate(left))
    places.facts = frozenset(
        guard
        for place, size in zip(index, left, strict=True)
        if place.terms
        for guard in (place, size - 1 - place)
    )
    normalizer = Normalizer(typing, places, positive)
    first, second = normalizer.value(lhs, index), normalizer.value(rhs, index)
    return first.key == second.key


def _output(places: Places, axis: int) -> Dim:
    places.solver.least[f"i{axis}"] = 0
    return symbol(f"i{axis}")
