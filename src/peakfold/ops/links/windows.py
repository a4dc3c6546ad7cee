"""Windows that slide over a dimension: what a part reads beyond itself, and what it is called with then."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from peakfold.ir.graph import Arg, Node, Value

SPACE = 2
"""The first dimension that a window slides over, of samples and channels; pools go over the last two."""

STRIDES: Mapping[str, int] = {
    "convolution": 3,
    "convolution_backward": 4,
    "max_pool2d_with_indices": 2,
    "max_pool2d_with_indices_backward": 3,
    "avg_pool2d": 2,
    "avg_pool2d_backward": 3,
}
"""Position of the stride; padding and dilation follow."""

DILATED = frozenset({"convolution", "convolution_backward", "max_pool2d_with_indices"})
"""Packets with a dilation; a gradient of a pool has none that counts."""

TRANSPOSED: Mapping[str, int] = {"convolution": 6, "convolution_backward": 7}
"""Position of the flag that says that places are spread; the output padding follows."""

INDICES: Mapping[str, int] = {"max_pool2d_with_indices": 1, "max_pool2d_with_indices_backward": 2}
"""Output, or operand, that counts places of a plane."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one dimension: place ``o`` reads places ``o * stride - padding + k * dilation``.

    Attributes:
        kernel, stride, padding, dilation: as the operator has them.
    """

    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> int:
        """Places between its first and its last one."""
        return (self.kernel - 1) * self.dilation

    @property
    def read(self) -> tuple[int, int]:
        """What places ``[a, b)`` read before ``a * stride`` and after ``b * stride``."""
        return self.padding, self.reach + 1 - self.stride - self.padding

    @property
    def spread(self) -> tuple[int, int]:
        """How many places around ``[a, b)`` add to ``[a * stride, b * stride)`` of what they spread over.

        More are taken at one end than that where the operator could not cut off what is too much else.
        """
        before, after = (self.reach - self.padding) // self.stride, (self.padding - 1) // self.stride + 1
        ahead = -((2 * self.padding - self.reach - 1) // self.stride) - 1
        before = max(before, after + ahead)
        return before, before - ahead

    @property
    def cut(self) -> tuple[int, int]:
        """Padding and output padding with which a transposed convolution leaves that out of its output."""
        top = self.spread[0] * self.stride + self.padding
        return top, (2 * self.padding - self.reach - 1) % self.stride


def windows_of(node: Node, kernel: tuple[int, ...]) -> list[Window]:
    """Return the window along each dimension.

    Args:
        node: a convolution or a pool, or its gradient.
        kernel: lengths of the window; one may stand for both of a pool's.
    """
    packet = node.op.packet
    at = STRIDES[packet]
    kernel = kernel * 2 if len(kernel) == 1 and "pool" in packet else kernel
    count = len(kernel)
    stride = spatial(node, at, count) or list(kernel)
    padding = spatial(node, at + 1, count) or [0] * count
    dilation = (spatial(node, at + 2, count) if packet in DILATED else []) or [1] * count
    return [Window(*each) for each in zip(kernel, stride, padding, dilation, strict=True)]


def spatial(node: Node, position: int, count: int) -> list[int]:
    """Return an argument of one number a dimension, where one stands for all; empty where it is left out."""
    arg = node.args[position] if position < len(node.args) else None
    found = [item for item in arg if isinstance(item, int)] if isinstance(arg, tuple) else []
    if isinstance(arg, int) and not isinstance(arg, bool):
        found = [arg]
    return found * count if len(found) == 1 else found


def given_halo(node: Node, kernel: tuple[int, ...], index: int) -> tuple[Arg, ...]:
    """Return the arguments of a node whose operand has its halo already, along one dimension of the window.

    Args:
        node: a convolution or a pool, or its gradient.
        kernel: lengths of the window.
        index: which of its dimensions.
    """
    packet, args = node.op.packet, list(node.args)
    windows = windows_of(node, kernel)
    at = STRIDES[packet]
    spread = packet in TRANSPOSED and bool(node.args[TRANSPOSED[packet]])
    padding = [window.padding for window in windows]
    padding[index] = 0
    if spread:
        flag = TRANSPOSED[packet]
        more = spatial(node, flag + 1, len(windows)) or [0] * len(windows)
        padding[index], more[index] = windows[index].cut if packet == "convolution" else (0, 0)
        args[flag + 1] = tuple(more)
    if len(args) == at:
        args.append(tuple(window.stride for window in windows))
    args[at + 1 : at + 2] = [tuple(padding)]
    return tuple(args)


def kernel_of(node: Node, shape_of: Callable[[Value], tuple[int, ...]]) -> tuple[int, ...]:
    """Return the lengths of the window of a convolution, a pool, or its gradient."""
    packet = node.op.packet
    if packet in TRANSPOSED:
        weight = node.args[1 if packet == "convolution" else 2]
        assert isinstance(weight, Value)
        return shape_of(weight)[SPACE:]
    return tuple(spatial(node, 2 if packet.endswith("_backward") else 1, 2))
