"""Gradients of a function by what it reads, closed over or given: each is a leaf of its own while it runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_active: list[Mapping[int, torch.Tensor]] = []


class _Swapped(TorchFunctionMode):
    """Has every operator read other tensors in place of some."""

    def __init__(self, others: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self._others = others

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        args, keywords = pytree.tree_map_only(torch.Tensor, self._other, (args, dict(kwargs or {})))
        return func(*args, **keywords)

    def _other(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._others.get(id(tensor), tensor)


def now(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Return what stands for some tensors in the function that is running."""
    others = standing()
    return tuple(others.get(id(one), one) if isinstance(one, torch.Tensor) else one for one in tensors)


def standing() -> Mapping[int, torch.Tensor]:
    """Return what stands for which tensor, by its id, in the function that is running."""
    return _active[-1] if _active else {}


@contextmanager
def standing_for(leaves: Mapping[int, torch.Tensor], outside: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Have leaves stand for tensors, by their ids.

    Args:
        leaves: what stands for which.
        outside: what stood for which where the function was called: for those, leaves stand as well.
    """
    both = {ident: leaves.get(id(one), one) for ident, one in outside.items()} | dict(leaves)
    _active.append(both)
    try:
        with _Swapped(both):
            yield
    finally:
        _active.pop()


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same value without a past; it needs a gradient where the other does."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def gradients(
    outs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor | None], sources: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the gradients of sources; zeros of those that no output depends on."""
    pairs = [(o, w) for o, w in zip(outs, weights, strict=True) if w is not None and o.requires_grad]
    found: Sequence[torch.Tensor | None] = [None] * len(sources)
    if pairs:
        some, theirs = zip(*pairs, strict=True)
        found = torch.autograd.grad(some, sources, theirs, allow_unused=True)
    both = zip(sources, found, strict=True)
    return [torch.zeros_like(source) if one is None else one for source, one in both]
