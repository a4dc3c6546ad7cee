"""The gradient of a convolution taken apart, so that each half can be done in parts of rows.

What it makes of its operand reads rows of the gradient beyond a part, as a convolution does; what it makes of
the weights reads rows of the operand, and is a sum over the parts.
"""

from peakfold.ir.graph import Node, Value
from peakfold.ir.types import TensorType, contiguous_strides
from peakfold.ops.links.special import flags
from peakfold.ops.links.windows import SPACE, Window, kernel_of, windows_of
from peakfold.plan.fission.rebuild import Rebuild, dense

CONVOLUTION = "aten.convolution.default"


def apart(build: Rebuild, node: Node) -> bool:
    """Add what stands for a ``convolution_backward``; return False where it stays as it is."""
    mask = flags(node.args[10])
    grad, x = build.value(node.args[0]), build.value(node.args[1])
    if not mask[0] or not any(mask[1:]) or not _row_major(build.type(grad), build.type(x)):
        return False
    kernel = kernel_of(node, lambda value: build.type(build.new.get(value, value)).shape)
    more = _left_out(build.type(grad), build.type(x), windows_of(node, kernel), bool(node.args[7]))
    if more is None:
        return False
    build.new[Value(node.id, 0)] = _of_operand(build, node, grad, more)
    _of_weights(build, node, grad, mask)
    return True


def _row_major(*kinds: TensorType) -> bool:
    return all(len(kind.shape) > SPACE and kind.strides == contiguous_strides(kind.shape) for kind in kinds)


def _left_out(
    grad: TensorType, x: TensorType, windows: list[Window], transposed: bool
) -> tuple[int, ...] | None:
    """Rows of the operand that no window reads, which its gradient has too; None where there are too many."""
    wide, narrow = (grad, x) if transposed else (x, grad)
    found = []
    for own, made, window in zip(wide.shape[SPACE:], narrow.shape[SPACE:], windows, strict=True):
        found.append(own - ((made - 1) * window.stride - 2 * window.padding + window.reach + 1))
    fits = all(0 <= more < window.stride for more, window in zip(found, windows, strict=True))
    return tuple(found) if fits else None


def _of_operand(build: Rebuild, node: Node, grad: Value, more: tuple[int, ...]) -> Value:
    weight = build.value(node.args[2])
    transposed = bool(node.args[7])
    padding = (0,) * len(more) if transposed else more
    args = (grad, weight, None, *node.args[4:7], not transposed, padding, node.args[9])
    return build.make(node, "operand", CONVOLUTION, args, node.types[0])[0]


def _of_weights(build: Rebuild, node: Node, grad: Value, mask: tuple[bool, ...]) -> None:
    """The weights' gradient; that of a bias is a sum of its own where rows of the gradient are shared."""
    kind = build.type(grad)
    summed = mask[2] and bool(node.args[7])
    if summed:
        dims = (0, *range(SPACE, len(kind.shape)))
        (bias,) = build.make(node, "bias", "aten.sum.dim_IntList", (grad, dims), node.types[2])
        build.new[Value(node.id, 2)] = bias
    kept = (False, mask[1], mask[2] and not summed)
    if not any(kept):
        return
    empty = dense(kind, 0)
    args = (*(build.read(arg) for arg in node.args[:10]), kept)
    types = (empty, node.types[1], node.types[2] if kept[2] else empty)
    _, weight, total = build.make(node, "weights", node.op, args, *types)
    build.new[Value(node.id, 1)] = weight
    if kept[2]:
        build.new[Value(node.id, 2)] = total
