"""Which operators read operands by their strides; all others are given tensors without gaps.

Many CPU kernels read an operand by a bare pointer: ``native_layer_norm_backward`` on a slice of the means
computes something else, and says nothing.
"""

from peakfold.ir.graph import Node
from peakfold.ops.links.table import POINTWISE, SCALED, SUMS

ANY_STRIDES: frozenset[str] = frozenset(
    {*POINTWISE, *SCALED, *SUMS, "mul", "where", "copy", "clone", "masked_fill", "_to_copy"}
    | {"mm", "addmm", "bmm", "baddbmm", "sum", "mean", "amax", "amin", "cat", "constant_pad_nd"}
)
"""Packets whose kernels go by strides: element-wise ones, products, sums."""
OFFSET = 3
"""The argument of ``as_strided`` that says where its storage has the first place."""


def reads_strides(name: str) -> bool:
    """Return whether an operator computes the same on a slice with gaps, by its qualified name.

    Example:
        >>> reads_strides("aten.mm.default"), reads_strides("aten.native_layer_norm_backward.default")
        (True, False)
    """
    space, _, rest = name.partition(".")
    return space == "host" or (space == "aten" and rest.split(".")[0] in ANY_STRIDES)


def counts_in_storage(node: Node) -> bool:
    """Return whether a view counts its places from the start of the storage, wherever its operand begins.

    Example:
        >>> from peakfold.ir.graph import Op, Value
        >>> from peakfold.ir.types import tensor
        >>> def strided(*offset):
        ...     args = (Value(0), (2,), (1,), *offset)
        ...     return Node(1, "part", Op("aten.as_strided.default"), args, (), (tensor(2),), (Value(0),))
        >>> counts_in_storage(strided(6)), counts_in_storage(strided())
        (True, False)
    """
    offset = node.args[OFFSET] if len(node.args) > OFFSET else dict(node.kwargs).get("storage_offset")
    return node.op.packet == "as_strided" and offset is not None
