"""Which operators read operands by their strides; all others are given tensors without gaps.

Many CPU kernels read an operand by a bare pointer: ``native_layer_norm_backward`` on a slice of the means
computes something else, and says nothing.
"""

from peakfold.ops.links.table import POINTWISE, SCALED, SUMS

ANY_STRIDES: frozenset[str] = frozenset(
    {*POINTWISE, *SCALED, *SUMS, "mul", "where", "copy", "clone", "masked_fill", "_to_copy"}
    | {"mm", "addmm", "bmm", "baddbmm", "sum", "mean", "amax", "amin", "cat", "constant_pad_nd"}
)
"""Packets whose kernels go by strides: element-wise ones, products, sums."""


def reads_strides(name: str) -> bool:
    """Return whether an operator computes the same on a slice with gaps, by its qualified name.

    Example:
        >>> reads_strides("aten.mm.default"), reads_strides("aten.native_layer_norm_backward.default")
        (True, False)
    """
    space, _, rest = name.partition(".")
    return space == "host" or (space == "aten" and rest.split(".")[0] in ANY_STRIDES)
