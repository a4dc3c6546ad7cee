"""How a value stands in a region that is done in parts: whole, split along a factor, or a partial sum."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from peakfold.ir.graph import Arg, Value
from peakfold.ops.links import Combine, Factor

__all__ = ["Assignment", "Combine", "Factor", "Margin", "Part", "Partial", "State"]


@dataclass(frozen=True, slots=True)
class Partial:
    """Each part makes a tensor of full size; the whole is all of them, combined."""

    combine: Combine = "sum"


State = Factor | Partial | None
"""None: whole, the same in every part."""

Assignment = Mapping[Value, State]


@dataclass(frozen=True, slots=True, order=True)
class Margin:
    """Places beyond a part, before and after it; they end at the first and the last place that there is.

    Example:
        >>> Margin(1, 3).over(2), Margin(1, 2).joined(Margin(2, 0)), Margin(1, 2).times(2).plus(1, 1)
        (Margin(before=1, after=2), Margin(before=2, after=2), Margin(before=3, after=5))
    """

    before: int = 0
    after: int = 0

    def joined(self, other: "Margin") -> "Margin":
        """Return the least that has both."""
        return Margin(max(self.before, other.before), max(self.after, other.after))

    def times(self, inner: int) -> "Margin":
        """Return it in places of which each of its own has several."""
        return Margin(self.before * inner, self.after * inner)

    def over(self, inner: int) -> "Margin":
        """Return the least that has it, in places that have several of its own each."""
        return Margin(-(-self.before // inner), -(-self.after // inner))

    def plus(self, before: int, after: int) -> "Margin":
        """Return it wider by so many places."""
        return Margin(self.before + before, self.after + after)


@dataclass(frozen=True, slots=True)
class Part:
    """The size of one part.

    Attributes:
        size: places of the split factor in the largest part.
        extent: the same as an argument: ``size`` where all parts are equal, else a host number's Value.
        start: first place of the part, a host number's Value.
        scaled: where ``extent`` is a Value, host numbers that are multiples of it, by the multiple
            (`part.multiples` says which a node needs).
        rows: places of the split dimension of a node that reaches beyond its part, as an argument; else None.
        more: how many of them are beyond ``size``, in the largest part.
    """

    size: int
    extent: Arg
    start: Arg
    scaled: Mapping[int, Value] = field(default_factory=dict)
    rows: Arg = None
    more: int = 0
