"""Results of a step that the next step must not change."""

from collections.abc import Iterable

import torch
from torch.utils import _pytree as pytree


def still(
    results: tuple[object, object], model: torch.nn.Module, batch: Iterable[tuple[str, torch.Tensor]]
) -> tuple[object, object]:
    """Return results in which what lies in tensors that are written again is a copy.

    Args:
        results: loss and outputs; a buffer that the model returns is the buffer itself.
        model: its parameters and buffers are written again.
        batch: named tensors, which the model may write.

    Example:
        >>> norm, other = torch.nn.BatchNorm1d(1), torch.zeros(2)
        >>> loss, outputs = still((other, {"seen": norm.running_mean[:1]}), norm, ())
        >>> _ = norm.running_mean.add_(1)
        >>> outputs, loss is other
        ({'seen': tensor([0.])}, True)
    """
    written = (*model.parameters(), *model.buffers(), *(tensor for _, tensor in batch))
    live = {_address(tensor) for tensor in written} - {None}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone() if _address(tensor) in live else tensor

    kept: tuple[object, object] = pytree.tree_map_only(torch.Tensor, copied, results)
    return kept


def _address(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage().data_ptr() or None if tensor.layout is torch.strided else None
