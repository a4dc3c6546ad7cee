"""Which places of a dimension a value of a part has, and which ones an operator reads."""

from dataclasses import dataclass, replace
from typing import Protocol

from peakfold.ops.links import Factor, Halo
from peakfold.plan.fission.derived import Term
from peakfold.plan.fission.states import Margin


class Parts(Protocol):
    """Knows every part."""

    def each(self, *terms: Term) -> list[int]:
        """Return a sum of terms in every part."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Places of a dimension, as numbers of the part.

    Attributes:
        low: the first one.
        high: the one after the last.
    """

    low: Term
    high: Term

    def counts(self, parts: Parts) -> list[int]:
        """Return how many they are in every part."""
        return parts.each(self.high, off(self.low))

    def same(self, other: "Rows", parts: Parts) -> bool:
        """Whether they are the same places in every part."""
        return all(
            parts.each(mine) == parts.each(theirs)
            for mine, theirs in ((self.low, other.low), (self.high, other.high))
        )


def rows_of(factor: Factor, margin: Margin) -> Rows:
    """Return the places that a part of a value has: with a margin, as far as there are any.

    Example:
        >>> rows = rows_of(Factor(2, 1, 4, 2), Margin(1, 1))
        >>> rows.low.text("start", "stop"), rows.high.text("start", "stop")
        ('max(start * 2 - 1, 0)', 'min(stop * 2 + 1, 8)')
    """
    before, after = margin.before, margin.after
    return Rows(
        Term("start", factor.inner, -before, least=0 if before else None),
        Term("stop", factor.inner, after, most=factor.length * factor.inner if after else None),
    )


def rows_read(factor: Factor, margin: Margin, halo: Halo | None) -> Rows:
    """Return the places of an operand that a part of a node reads.

    Args:
        factor: how the operand is split.
        margin: of the node, in places of the operand.
        halo: what the operator reads beyond what it makes; with a fill, beyond all places that there are.
    """
    if halo is None:
        return rows_of(factor, margin)
    if halo.fill is None:
        return rows_of(factor, margin.plus(halo.before, halo.after))
    own = rows_of(factor, margin)
    return Rows(_moved(own.low, -halo.before), _moved(own.high, halo.after))


def padding(have: Rows, wanted: Rows) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """Return how many places must be added before and after what there is; fewer than 0: cut off.

    Example:
        >>> have = rows_of(Factor(2, 1, 8, 1), Margin(1, 1))
        >>> top, bottom = padding(have, rows_read(Factor(2, 1, 8, 1), Margin(), Halo(1, 1, 0.0)))
        >>> top[0].text("start", "stop"), bottom[0].text("start", "stop")
        ('max(1 - start, 0)', 'max(stop - 7, 0)')
    """
    return _between(wanted.low, have.low), _between(have.high, wanted.high)


def off(term: Term) -> Term:
    """Return a term that is taken off."""
    return replace(term, sign=-term.sign)


def _moved(term: Term, by: int) -> Term:
    least = None if term.least is None else term.least + by
    most = None if term.most is None else term.most + by
    return replace(term, plus=term.plus + by, least=least, most=most)


def _between(first: Term, second: Term) -> tuple[Term, ...]:
    """The second less the first; one term where one's bounds hold wherever those of the other do."""
    apart = second.plus - first.plus
    if first.times != second.times:
        return second, off(first)
    if first.most is None and second.most is None and second.least is not None:
        # max(x + q, m) - max(x + p, l), where m - q >= l - p: m - p - x between q - p and m - l
        most = None if first.least is None else second.least - first.least
        if most is None or most >= apart:
            return (Term(first.of, -first.times, second.least - first.plus, apart, most),)
    if first.least is None and second.least is None and first.most is not None:
        # min(x + q, m) - min(x + p, l), where l - p <= m - q: x + q - l between q - p and m - l
        most = None if second.most is None else second.most - first.most
        if most is None or most >= apart:
            return (Term(first.of, first.times, second.plus - first.most, apart, most),)
    return second, off(first)
