"""How far apart the results of two programs are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

Role = Literal["loss", "output", "parameter", "buffer", "gradient", "state", "random"]

BOUND = 1e-9
"""The largest error in float64, relative to the scale of the tensor."""

FLOOR = 1e-3
"""A tensor's scale counts as at least this part of the largest of its role: a gradient that is zero in
exact arithmetic consists of the roundoff of the magnitudes that were summed."""


@dataclass(frozen=True)
class Result:
    """A tensor that a program left.

    Attributes:
        name: e.g. ``"loss of step 2"`` or ``"fc.weight"``.
        role: what it is.
        tensor: its value.
        is_cache: whether it is a buffer that is not saved: it may be there in another form, or not yet.
    """

    name: str
    role: Role
    tensor: torch.Tensor
    is_cache: bool = False

    def is_beside(self, other: "Result | None") -> bool:
        """Whether another program may leave this otherwise: a cache that it has not made."""
        return self.is_cache and (other is None or other.tensor.shape != self.tensor.shape)


@dataclass(frozen=True)
class Difference:
    """How far the results of a program are from those of the original.

    Attributes:
        bit_equal: whether every bit is the same.
        max_error: the largest error, relative to the scale of its tensor; infinite where a tensor is
            missing, of another shape or type, or NaN on one side alone.
        worst: name of the tensor with the largest error; of one whose bits differ where all errors are 0.
    """

    bit_equal: bool
    max_error: float
    worst: str


def compare(original: Sequence[Result], found: Sequence[Result]) -> Difference:
    """Compare two lists of results by name.

    Example:
        >>> a, b = (Result("w", "parameter", torch.tensor([1.0, x])) for x in (2.0, 2.5))
        >>> compare([a], [b])
        Difference(bit_equal=False, max_error=0.25, worst='w')
    """
    floors = _floors(original)
    differ = list(_differing(original, {result.name: result for result in found}, floors))
    extra = {result.name for result in found if not result.is_cache} - {result.name for result in original}
    differ += [(float("inf"), name) for name in sorted(extra)]
    if not differ:
        return Difference(True, 0.0, "")
    error, worst = max(differ, key=lambda pair: pair[0])
    return Difference(False, error, worst)


def distance(exact: Sequence[Result], found: Sequence[Result]) -> float:
    """Return the largest error of results against the same in a wider precision; random streams do not count.

    Example:
        >>> exact = [Result("w", "parameter", torch.tensor([1.0, 4.0], dtype=torch.float64))]
        >>> distance(exact, [Result("w", "parameter", torch.tensor([1.0, 5.0]))])
        0.25
    """
    floors, by_name = _floors(exact), {result.name: result for result in found}
    compared = [r for r in exact if r.role != "random" and not r.is_beside(by_name.get(r.name))]
    if any(result.name not in by_name for result in compared):
        return float("inf")
    pairs = ((r, by_name[r.name].tensor.to(r.tensor.dtype)) for r in compared)
    return max((error_of(r.tensor, other, floors[r.role]) for r, other in pairs), default=0.0)


def allowed(original: Sequence[Result]) -> dict[str, float]:
    """Return by how much each number of a result may be off in float64, by name of the result.

    Example:
        >>> allowed([Result("w", "parameter", torch.tensor([1.0, 4.0]))])
        {'w': 4e-09}
    """
    floors = _floors(original)
    return {result.name: BOUND * max(_scale(result.tensor), floors[result.role]) for result in original}


def _floors(results: Sequence[Result]) -> dict[Role, float]:
    floors: dict[Role, float] = {}
    for result in results:
        scale = FLOOR * _scale(result.tensor)
        floors[result.role] = max(floors.get(result.role, 0.0), scale)
    return floors


def _scale(tensor: torch.Tensor) -> float:
    if not tensor.numel():
        return 0.0
    magnitudes = _numbers(tensor).abs()
    finite = magnitudes[magnitudes.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _differing(
    original: Sequence[Result], found: Mapping[str, Result], floors: Mapping[Role, float]
) -> Iterator[tuple[float, str]]:
    """Yield (error, name) of each tensor whose bits differ."""
    for result in original:
        other = found.get(result.name)
        if result.is_beside(other):
            continue
        if other is None:
            yield float("inf"), result.name
        elif not same_bits(result.tensor, other.tensor):
            yield error_of(result.tensor, other.tensor, floors[result.role]), result.name


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have the same type, shape and bits; NaN equals the same NaN.

    Example:
        >>> nan = torch.tensor([float("nan")])
        >>> same_bits(nan, nan.clone()), same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
        (True, False)
    """
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(_bits(left), _bits(right))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def error_of(original: torch.Tensor, found: torch.Tensor, floor: float = 0.0) -> float:
    """Return the largest error of a tensor, relative to its own scale or to a floor of it.

    Example:
        >>> error_of(torch.tensor([4.0]), torch.tensor([5.0]))
        0.25
    """
    if original.dtype != found.dtype or original.shape != found.shape:
        return float("inf")
    left, right = _numbers(original), _numbers(found)
    alike = (left == right) | (left.isnan() & right.isnan())
    gap = torch.where(alike, 0.0, (left - right).abs())
    if not gap.isfinite().all():
        return float("inf")
    largest = float(gap.max()) if gap.numel() else 0.0
    return largest / max(_scale(original), floor) if largest else 0.0
