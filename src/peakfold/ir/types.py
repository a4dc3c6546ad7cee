"""Types of values: tensors with strides, and host scalars."""

from dataclasses import dataclass
from typing import Literal

DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor.

    Attributes:
        shape: length of each dimension.
        dtype: torch's name without ``torch.``, e.g. ``"float32"``.
        device: e.g. ``"cpu"`` or ``"cuda:0"``.
        strides: in elements, one a dimension.

    Example:
        >>> TensorType((2, 3), "float32", "cpu", (3, 1)).nbytes
        24
    """

    shape: tuple[int, ...]
    dtype: str
    device: str
    strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element, as a fresh storage of these strides takes."""
        if self.numel == 0:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * DTYPE_BYTES[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        """Whether the strides are those of a row-major tensor of this shape."""
        return self.strides == contiguous_strides(self.shape) or self.numel <= 1


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A host number: takes no device memory."""

    kind: Literal["float", "int", "bool"]


Type = TensorType | ScalarType


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of a shape, in elements.

    Example:
        >>> contiguous_strides((2, 3, 4))
        (12, 4, 1)
    """
    strides: list[int] = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def tensor(
    *shape: int, dtype: str = "float32", device: str = "cpu", strides: tuple[int, ...] | None = None
) -> TensorType:
    """Return a tensor type, row-major unless strides are given.

    Example:
        >>> tensor(2, 3).strides
        (3, 1)
    """
    return TensorType(shape, dtype, device, contiguous_strides(shape) if strides is None else strides)
