"""The caller's own tensors in an arena: brought there once, found there from then on.

A tensor of the model or the optimizer stays the same object; its bytes move. The batch is copied into its
place unless it lies there already, as what `Step.place` returns does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from peakfold.bridge.capture.binding import BatchLeaf, Binding
from peakfold.bridge.runtime.arena import Memory, places
from peakfold.ir.graph import Graph
from peakfold.plan.memory.layout import Held


@dataclass(frozen=True)
class Copies:
    """What had to be copied.

    Attributes:
        tensors: how many.
        nbytes: bytes of these.
    """

    tensors: int = 0
    nbytes: int = 0

    def __add__(self, other: "Copies") -> "Copies":
        return Copies(self.tensors + other.tensors, self.nbytes + other.nbytes)


class Holder:
    """Places in an arena for the tensors that a program is given.

    Attributes:
        nbytes: of the tensors that were found in their place, or brought there, by the last call.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._raw: dict[str, torch.Tensor] = {}

    def take(self, memory: Memory, held: Sequence[Held]) -> None:
        """Take places in a block, instead of those before."""
        self._raw = dict(zip((one.name for one in held), places(memory, held), strict=True))

    def bring(
        self, graph: Graph, binding: Binding, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], Copies]:
        """Return the tensors of a call in their places, and what was copied for that."""
        found, copies, self.nbytes = dict(tensors), Copies(), 0
        if not self._raw:
            return found, copies
        for given, source in zip(graph.inputs, binding.sources, strict=True):
            tensor = tensors.get(given.name)
            if tensor is None or given.name not in self._raw:
                continue
            if tensor.data_ptr() != self._raw[given.name].data_ptr():
                view = self.view(given.name, tensor)
                view.copy_(tensor.detach())
                copies += Copies(1, extent(tensor))
                if isinstance(source, BatchLeaf):
                    found[given.name] = view
                else:
                    tensor.data = view
            self.nbytes += extent(tensor)
        return found, copies

    def view(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Return the place of an input as a tensor of a form."""
        storage = self._raw[name].untyped_storage()
        empty = torch.empty(0, dtype=like.dtype)
        return empty.set_(storage, 0, like.shape, like.stride())

    def holds(self, name: str) -> bool:
        """Whether an input has a place."""
        return name in self._raw


def extent(tensor: torch.Tensor) -> int:
    """Return the bytes from the first to the last element of a tensor.

    Example:
        >>> extent(torch.empty(2, 3)), extent(torch.empty(2, 3).t()), extent(torch.empty(4, 8)[:, :2])
        (24, 24, 104)
    """
    if not tensor.numel():
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def is_alone(tensor: torch.Tensor) -> bool:
    """Whether a tensor has all of its storage, so that its bytes may move."""
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == extent(tensor) > 0
