"""Values that fit into fewer bytes without loss, by what their operator can make."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from peakfold.ir.graph import Graph, Value
from peakfold.ir.types import DTYPE_BYTES, TensorType

Form = Literal["bits", "int16", "int32"]
BITS = 8
RANGES: tuple[tuple[int, Form], ...] = ((1 << 15, "int16"), (1 << 31, "int32"))
"""Whole numbers from 0 to below the bound, and the type that holds them."""

INDEX_PLANES: Mapping[tuple[str, int], int] = {
    ("aten.max_pool2d_with_indices.default", 1): 2,
    ("aten.max_pool3d_with_indices.default", 1): 3,
}
"""Outputs that are places in the last dimensions of the first operand: (operator, output) to how many."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How a value is packed.

    Attributes:
        form: one bit for each truth value, or whole numbers in a smaller type.
        nbytes: bytes when it is packed.
    """

    form: Form
    nbytes: int


def packing(graph: Graph, value: Value) -> Packing | None:
    """Return how a value that owns its storage is packed without loss, or None where it is not.

    Example:
        >>> from peakfold.ir.graph import Input, Node, Op
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(20))
        >>> mask = tensor(20, dtype="bool")
        >>> gt = Node(1, "gt", Op("aten.gt.Scalar"), (Value(0), 0.0), (), (mask,), (None,))
        >>> packing(Graph((x,), (gt,), ()), Value(1))
        Packing(form='bits', nbytes=3)
    """
    kind = graph.type(value)
    if value.node not in graph.node or graph.storage(value) != value or not isinstance(kind, TensorType):
        return None
    count = kind.nbytes // DTYPE_BYTES[kind.dtype]
    if kind.dtype == "bool":
        return Packing("bits", -(-count // BITS)) if count > BITS else None
    if kind.dtype != "int64" or count != prod(kind.shape):
        return None
    bound = _bound(graph, value)
    for limit, form in RANGES:
        if bound is not None and bound <= limit:
            return Packing(form, count * DTYPE_BYTES[form])
    return None


def _bound(graph: Graph, value: Value) -> int | None:
    """What all entries of an output are below, or None where it is not known."""
    node = graph.node[value.node]
    dims = INDEX_PLANES.get((node.op.name, value.index))
    operand = node.args[0] if node.args else None
    if dims is None or not isinstance(operand, Value):
        return None
    return prod(graph.tensor_type(operand).shape[-dims:])
