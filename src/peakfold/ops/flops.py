"""Floating-point operations and bytes of operators, kernel by kernel.

Operators without an entry are one kernel that touches each element of its largest tensor once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.types import DTYPE_BYTES, TensorType, Type
from peakfold.ops.inplace import is_placed


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of an operator.

    Attributes:
        flops: floating-point operations.
        nbytes: bytes of its inputs, read once, and of its outputs, written once.
        dtype: of its output, e.g. ``"float32"``.
        product: whether it is a matrix product or a convolution.
    """

    flops: float
    nbytes: int
    dtype: str
    product: bool = False


def kernels(graph: Graph, node: Node) -> tuple[Kernel, ...]:
    """Return the kernels of a node; none where it is a view or computes host numbers.

    Example:
        >>> from peakfold.ir.graph import Input, Op
        >>> from peakfold.ir.types import tensor
        >>> given = (Input(0, "a", "batch", tensor(2, 3)), Input(1, "b", "batch", tensor(3, 4)))
        >>> mm = Node(2, "mm", Op("aten.mm.default"), (Value(0), Value(1)), (), (tensor(2, 4),), (None,))
        >>> kernels(Graph(given, (mm,), ()), mm)
        (Kernel(flops=48, nbytes=104, dtype='float32', product=True),)
    """
    if node.is_view or node.is_host:
        return ()
    return KERNELS.get(_packet(node), _pointwise)(graph, node)


def touched(kind: Type) -> int:
    """Return the bytes of the distinct elements of a tensor; an expanded one counts once.

    Example:
        >>> from peakfold.ir.types import tensor
        >>> touched(tensor(8, 4, strides=(0, 1)))
        16
    """
    if not isinstance(kind, TensorType):
        return 0
    return prod(n for n, s in zip(kind.shape, kind.strides, strict=True) if s) * DTYPE_BYTES[kind.dtype]


def _packet(node: Node) -> str:
    """Return an operator's name without its overload."""
    return node.op.name.rsplit(".", 1)[0]


def _moved(graph: Graph, node: Node) -> int:
    reads = sum(touched(graph.type(value)) for value in dict.fromkeys(node.inputs))
    return reads + sum(touched(kind) for kind in node.types)


def _tensor(graph: Graph, node: Node, position: int) -> TensorType:
    arg = node.args[position]
    assert isinstance(arg, Value), node.name
    return graph.tensor_type(arg)


def _first(node: Node) -> TensorType:
    return next(kind for kind in node.types if isinstance(kind, TensorType))


def _pointwise(graph: Graph, node: Node) -> tuple[Kernel, ...]:
    kinds: Iterable[Type] = (*(graph.type(value) for value in node.inputs), *node.types)
    largest = max(kind.numel for kind in kinds if isinstance(kind, TensorType))
    return (Kernel(largest, _moved(graph, node), _first(node).dtype),)


def _one(graph: Graph, node: Node, flops: float) -> tuple[Kernel, ...]:
    return (Kernel(flops, _moved(graph, node), _first(node).dtype, product=True),)


def _matmul(left: int) -> Callable[[Graph, Node], tuple[Kernel, ...]]:
    """Return the kernel of a product whose argument ``left`` is reduced over its last dimension."""

    def kernel(graph: Graph, node: Node) -> tuple[Kernel, ...]:
        return _one(graph, node, 2 * _first(node).numel * _tensor(graph, node, left).shape[-1])

    return kernel


def _convolution_flops(out: TensorType, given: TensorType, weight: TensorType, transposed: bool) -> int:
    """Return the multiplications and additions of a forward convolution, groups included."""
    return 2 * (given.numel if transposed else out.numel) * prod(weight.shape[1:])


def _convolution(graph: Graph, node: Node) -> tuple[Kernel, ...]:
    given, weight = _tensor(graph, node, 0), _tensor(graph, node, 1)
    return _one(graph, node, _convolution_flops(_first(node), given, weight, bool(node.args[6])))


def _convolution_backward(graph: Graph, node: Node) -> tuple[Kernel, ...]:
    """Gradients of the input and of the weight are a convolution each; that of the bias, the last, a sum."""
    grad, given, weight = (_tensor(graph, node, i) for i in range(3))
    mask = node.args[10]
    assert isinstance(mask, tuple), node.name
    flops = _convolution_flops(grad, given, weight, bool(node.args[7]))
    moved = touched(grad) + touched(given) + touched(weight)
    found = [Kernel(flops, moved, grad.dtype, product=True) for wanted in mask[:2] if wanted]
    if mask[2]:
        bias = node.types[-1]
        found.append(Kernel(grad.numel, touched(grad) + touched(bias), grad.dtype))
    return tuple(found)


def _attention_flops(query: TensorType, key: TensorType, value: TensorType) -> int:
    """Return the operations of scores and of the weighted sum."""
    *batch, length, head = query.shape
    return 2 * prod(batch) * length * key.shape[-2] * (head + value.shape[-1])


def _attention(graph: Graph, node: Node) -> tuple[Kernel, ...]:
    query, key, value = (_tensor(graph, node, i) for i in range(3))
    return _one(graph, node, _attention_flops(query, key, value))


def _attention_backward(graph: Graph, node: Node) -> tuple[Kernel, ...]:
    """Five products where the forward has two: the scores again, and four gradients."""
    query, key, value = (_tensor(graph, node, i) for i in range(1, 4))
    return _one(graph, node, 2.5 * _attention_flops(query, key, value))


def _placed(graph: Graph, node: Node) -> tuple[Kernel, ...]:
    """A part that is written into its place, as at a border of a region, or a copy of the whole with it."""
    if not isinstance(node.args[3], Value) and not is_placed(graph, node):
        return _pointwise(graph, node)
    part = _tensor(graph, node, 1)
    return (Kernel(part.numel, 2 * touched(part), part.dtype),)


def _none(graph: Graph, node: Node) -> tuple[Kernel, ...]:
    """Memory that is taken and not written."""
    return ()


KERNELS: dict[str, Callable[[Graph, Node], tuple[Kernel, ...]]] = {
    "aten.empty": _none,
    "aten.empty_like": _none,
    "aten.empty_permuted": _none,
    "aten.empty_strided": _none,
    "aten.new_empty": _none,
    "aten.new_empty_strided": _none,
    "aten.slice_scatter": _placed,
    "aten.mm": _matmul(0),
    "aten.bmm": _matmul(0),
    "aten.mv": _matmul(0),
    "aten.dot": _matmul(0),
    "aten.matmul": _matmul(0),
    "aten.linear": _matmul(0),
    "aten.addmm": _matmul(1),
    "aten.baddbmm": _matmul(1),
    "aten.addbmm": _matmul(1),
    "aten.addmv": _matmul(1),
    "aten.convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    "aten._scaled_dot_product_flash_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_efficient_attention": _attention,
    "aten._scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten._scaled_dot_product_efficient_attention_backward": _attention_backward,
}
