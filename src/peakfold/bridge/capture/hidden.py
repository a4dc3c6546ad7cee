"""Bytes that eager operators take and give back while they run, beyond their outputs.

Two sources: figures measured for the operators of a captured graph, and, where nothing may be run, a
model of what oneDNN's convolutions reorder. Other operators hide under half a percent of a step.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from peakfold.bridge.capture.storage import Geometry
from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.types import TensorType
from peakfold.ops.recurrent import BACKWARD

Hidden = Callable[[torch._ops.OpOverload, Sequence[object], Mapping[str, object]], int]

BLOCK = 16
"""Channels that oneDNN keeps together on a CPU with AVX-512; others are padded to a multiple."""

PLAIN = 4
"""Up to so many input channels oneDNN reads the image as it is."""


def measured(graph: Graph, workspace: Mapping[int, int]) -> Hidden:
    """Return the hidden bytes of operators by what was measured for the nodes of a graph.

    Args:
        graph: captured from the same step.
        workspace: hidden bytes by node id, as in ``Costs.workspace``.
    """
    known = {_signature(graph, node): workspace.get(node.id, 0) for node in graph.nodes if not node.is_host}

    def hidden(op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> int:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        shapes = tuple(tuple(tensor.shape) for tensor in tensors[: _shaped(str(op), len(tensors))])
        return known.get((str(op), shapes), 0)

    return hidden


def _signature(graph: Graph, node: Node) -> tuple[str, tuple[tuple[int, ...], ...]]:
    kinds = [graph.type(arg) for arg in node.args if isinstance(arg, Value)]
    shapes = [kind.shape for kind in kinds if isinstance(kind, TensorType)]
    return node.op.name, tuple(shapes[: _shaped(node.op.name, len(shapes))])


def _shaped(op: str, tensors: int) -> int:
    """Return how many operands of an operator have a shape: the last one of some is opaque."""
    return tensors - (op == BACKWARD)


def onednn(op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> int:
    """Return what a convolution reorders into blocked layouts, by the shapes alone.

    Checked for float32 on a CPU with AVX-512; 0 for everything but plain convolutions.

    Example:
        >>> x, w = torch.empty(12, 128, 16, 16), torch.empty(128, 128, 3, 3)
        >>> rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        >>> onednn(torch.ops.aten.convolution.default, (x, w, *rest), {})
        2162688
    """
    if op is torch.ops.aten.convolution.default and _plain(args[0], args[6], args[8]):
        x, weight = args[:2]
        made = op(*args, **kwargs)
        return _forward(Geometry.of(x), Geometry.of(weight), Geometry.of(made))  # type: ignore[arg-type]
    if op is torch.ops.aten.convolution_backward.default and _plain(args[1], args[7], args[9]):
        gradient, x, weight = args[:3]
        strided = any(step != 1 for step in args[4])  # type: ignore[attr-defined]
        shapes = [Geometry.of(tensor) for tensor in (x, weight, gradient)]  # type: ignore[arg-type]
        return _backward(*shapes, strided=strided)
    return 0


def _plain(x: object, transposed: object, groups: object) -> bool:
    assert isinstance(x, torch.Tensor)
    return x.device.type == "cpu" and x.dtype is torch.float32 and not transposed and groups == 1


def _forward(x: Geometry, weight: Geometry, made: Geometry) -> int:
    blocked_x, blocked_w, blocked = _image(x), _weight(weight), _image(made, output=True)
    return max(blocked_x + blocked_w + blocked, blocked + _bytes(made)) - _bytes(made)


def _backward(x: Geometry, weight: Geometry, made: Geometry, *, strided: bool) -> int:
    blocked_x, blocked_w, blocked = _image(x), _weight(weight), _image(made, output=True)
    to_input = max(blocked + blocked_w + blocked_x, blocked_x + _bytes(x) * (1 + strided))
    to_weight = _bytes(x) + max(blocked + blocked_x + blocked_w, blocked_w + _bytes(weight))
    return max(to_input, to_weight) - _bytes(x) - _bytes(weight)


def _bytes(geometry: Geometry) -> int:
    count = geometry.dtype.itemsize
    for length in geometry.shape:
        count *= length
    return count


def _image(geometry: Geometry, output: bool = False) -> int:
    channels = geometry.shape[1]
    if channels <= PLAIN and not output:
        return 0
    return _bytes(geometry) // channels * _padded(channels)


def _weight(geometry: Geometry) -> int:
    out, channels, *_ = geometry.shape
    inner = channels if channels <= PLAIN else _padded(channels)
    return _bytes(geometry) // (out * channels) * inner * _padded(out)


def _padded(channels: int) -> int:
    return -(-channels // BLOCK) * BLOCK
