"""How a value stands in a region that is done in parts: whole, split along a factor, or a partial sum."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from peakfold.ir.graph import Arg, Value
from peakfold.ops.links import Combine, Factor

__all__ = ["Assignment", "Combine", "Factor", "Part", "Partial", "State"]


@dataclass(frozen=True, slots=True)
class Partial:
    """Each part makes a tensor of full size; the whole is all of them, combined."""

    combine: Combine = "sum"


State = Factor | Partial | None
"""None: whole, the same in every part."""

Assignment = Mapping[Value, State]


@dataclass(frozen=True, slots=True)
class Part:
    """The size of one part.

    Attributes:
        size: places of the split factor in the largest part.
        extent: the same as an argument: ``size`` where all parts are equal, else a host number's Value.
        start: first place of the part, a host number's Value.
        scaled: where ``extent`` is a Value, host numbers that are multiples of it, by the multiple
            (`part.multiples` says which a node needs).
    """

    size: int
    extent: Arg
    start: Arg
    scaled: Mapping[int, Value] = field(default_factory=dict)
