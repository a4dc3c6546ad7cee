"""Operands for one operator on its own: of the right types, and with values that it accepts."""

from collections.abc import Callable, Mapping
from math import prod

import torch

from peakfold.ir.graph import Arg, Graph, Node, Symbol, Value, values_in
from peakfold.ir.types import DTYPE_BYTES, ScalarType, TensorType

Call = tuple[tuple[object, ...], dict[str, object]]

_HOST: Mapping[str, float] = {"float": 0.5, "int": 3, "bool": True}
_BLOCK = 1 << 18


class Maker:
    """Makes operands from one block of random numbers, so that large ones are quick to fill."""

    def __init__(self, seed: int = 0) -> None:
        """Draw the block; torch's own generator is not touched."""
        generator = torch.Generator().manual_seed(seed)
        self._normal = torch.randn(_BLOCK, generator=generator)
        self._uniform = torch.rand(_BLOCK, generator=generator)

    def call(self, graph: Graph, node: Node) -> Call:
        """Return fresh arguments for a node's operator: one tensor a Value, views apart from each other."""
        limits = index_limits(graph, node)
        made = {value: self.operand(graph, value, limits.get(value, 2)) for value in node.inputs}
        args = tuple(_argument(arg, made) for arg in _fixed(graph, node))
        return args, {name: _argument(arg, made) for name, arg in node.kwargs}

    def operand(self, graph: Graph, value: Value, limit: int) -> object:
        """Return a fresh tensor or number for a Value; whole numbers are below ``limit``."""
        kind = graph.type(value)
        if isinstance(kind, ScalarType):
            return _HOST[kind.kind]
        return self._tensor(kind, limit)

    def _tensor(self, kind: TensorType, limit: int) -> torch.Tensor:
        dtype = getattr(torch, kind.dtype)
        extent = kind.nbytes // DTYPE_BYTES[kind.dtype]
        flat = torch.empty(extent, dtype=dtype, device=kind.device)
        for begin in range(0, extent, _BLOCK):
            part = flat[begin : begin + _BLOCK]
            part.copy_(self._values(dtype, limit)[: len(part)])
        return flat.as_strided(kind.shape, kind.strides)

    def _values(self, dtype: torch.dtype, limit: int) -> torch.Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            return self._normal
        return (self._uniform * limit).clamp_(max=limit - 1) if limit > 0 else torch.zeros(_BLOCK)


PAD, PLACE = "aten.constant_pad_nd.default", "aten.slice_scatter.default"


def _fixed(graph: Graph, node: Node) -> tuple[Arg, ...]:
    """Arguments of a node, numbers of a part among them such that its output is of the type that it has."""
    args = list(node.args)
    if node.op.name == PLACE and isinstance(args[3], Value):
        dim = args[2]
        assert isinstance(dim, int)
        args[3:5] = [0, _shape(graph, args[1])[dim]]
    elif node.op.name == PAD and any(isinstance(item, Value) for item in values_in((args[1],))):
        kind = node.types[0]
        assert isinstance(kind, TensorType)
        more = [made - own for made, own in zip(kind.shape, _shape(graph, args[0]), strict=True)]
        args[1] = tuple(count for dim in reversed(more) for count in (dim, 0))
    return tuple(args)


def _argument(arg: Arg, made: Mapping[Value, object]) -> object:
    if isinstance(arg, Value):
        return made[arg]
    if isinstance(arg, tuple):
        return [_argument(item, made) for item in arg]
    if isinstance(arg, Symbol):
        return torch.device(arg.name) if arg.kind == "device" else getattr(torch, arg.name)
    return arg


def index_limits(graph: Graph, node: Node) -> dict[Value, int]:
    """Return, for each operand that holds indices, how many things it may point at."""
    rule = _LIMITS.get(node.op.name.rsplit(".", 1)[0])
    return {} if rule is None else rule(graph, node)


_Rule = Callable[[Graph, Node], dict[Value, int]]


def _shape(graph: Graph, arg: Arg) -> tuple[int, ...]:
    assert isinstance(arg, Value)
    return graph.tensor_type(arg).shape


def _length(index: int, of: int, dim: int) -> _Rule:
    """Argument ``index`` points along dimension ``dim`` of argument ``of``."""

    def rule(graph: Graph, node: Node) -> dict[Value, int]:
        shape = _shape(graph, node.args[of])
        return {value: shape[dim if len(shape) > 1 else 0] for value in values_in((node.args[index],))}

    return rule


def _along(graph: Graph, node: Node) -> dict[Value, int]:
    """``(self, dim, index, ...)``."""
    dim = node.args[1]
    assert isinstance(dim, int), node.name
    shape = _shape(graph, node.args[0])
    return dict.fromkeys(values_in((node.args[2],)), shape[dim] if shape else 1)


def _each(graph: Graph, node: Node) -> dict[Value, int]:
    """``(self, (index of dimension 0, index of dimension 1, ...), ...)``."""
    indices = node.args[1]
    assert isinstance(indices, tuple), node.name
    shape = _shape(graph, node.args[0])
    return {v: n for v, n in zip(indices, shape, strict=False) if isinstance(v, Value)}


def _rows(graph: Graph, node: Node) -> dict[Value, int]:
    """``embedding_dense_backward(grad, indices, num_weights, ...)``."""
    rows = node.args[2]
    return {value: rows if isinstance(rows, int) else 1 for value in values_in((node.args[1],))}


def _plane(graph: Graph, node: Node) -> dict[Value, int]:
    """``max_pool2d_with_indices_backward(grad, self, ..., indices)``."""
    plane = prod(_shape(graph, node.args[1])[-2:])
    return dict.fromkeys(values_in((node.args[-1],)), plane)


_LIMITS: dict[str, _Rule] = {
    "aten.embedding": _length(1, 0, 0),
    "aten.embedding_dense_backward": _rows,
    "aten.gather": _along,
    "aten.scatter": _along,
    "aten.scatter_add": _along,
    "aten.index_select": _along,
    "aten.index_add": _along,
    "aten.index_copy": _along,
    "aten.index": _each,
    "aten.index_put": _each,
    "aten._unsafe_index": _each,
    "aten._unsafe_index_put": _each,
    "aten.nll_loss_forward": _length(1, 0, 1),
    "aten.nll_loss2d_forward": _length(1, 0, 1),
    "aten.nll_loss_backward": _length(2, 1, 1),
    "aten.nll_loss2d_backward": _length(2, 1, 1),
    "aten.max_pool2d_with_indices_backward": _plane,
}
