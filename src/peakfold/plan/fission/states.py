"""How a value stands in a region that is done in parts: whole, split along a factor, or a partial sum."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from peakfold.ir.graph import Arg, Value

Combine = Literal["sum", "max", "min", "prod", "all", "any"]


@dataclass(frozen=True, slots=True, order=True)
class Factor:
    """One factor of a dimension: dimension ``dim`` runs over ``outer * length * inner`` places.

    A part of it is a contiguous narrow where ``outer`` is 1, else a strided slice.

    Attributes:
        dim: the dimension, from 0.
        outer: places of the factors before this one in the dimension.
        length: places of this one: what is split.
        inner: places of the factors after it.
    """

    dim: int
    outer: int
    length: int
    inner: int


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
    """

    size: int
    extent: Arg
    start: Arg
