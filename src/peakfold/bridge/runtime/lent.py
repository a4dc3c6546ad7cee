"""Batches of other libraries: what speaks DLPack is taken as a tensor, without a copy where that can be."""

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.dlpack import from_dlpack

from peakfold.bridge.runtime.held import Copies


def as_tensors(batch: object) -> tuple[object, Copies]:
    """Return a batch with every array as a tensor on the same bytes, and what had to be copied.

    Arrays that may not be written, and those whose bytes torch cannot address, are copied.

    Example:
        >>> import numpy
        >>> array = numpy.ones(3, numpy.float32)
        >>> (tensor,), copies = as_tensors((array,))
        >>> tensor.data_ptr() == array.ctypes.data, copies.tensors
        (True, 0)
    """
    if isinstance(batch, tuple) and all(isinstance(leaf, torch.Tensor) for leaf in batch):
        return batch, Copies()
    leaves, tree = pytree.tree_flatten(batch)
    if not any(_is_foreign(leaf) for leaf in leaves):
        return batch, Copies()
    copies, found = Copies(), list[object]()
    for leaf in leaves:
        if not _is_foreign(leaf):
            found.append(leaf)
            continue
        lent = _lent(leaf)
        if lent is None:
            lent = torch.tensor(leaf)
            copies += Copies(1, lent.nbytes)
        found.append(lent)
    return pytree.tree_unflatten(found, tree), copies


def _lent(leaf: Any) -> torch.Tensor | None:
    """Return an array's own bytes as a tensor; None where torch may not write or cannot address them.

    DLPack itself does not say so: NumPy lends arrays that may not be written as well.
    """
    if not getattr(getattr(leaf, "flags", None), "writeable", True):
        return None
    try:
        return from_dlpack(leaf)
    except (BufferError, RuntimeError, TypeError):
        return None


def _is_foreign(leaf: object) -> bool:
    return hasattr(leaf, "__dlpack__") and hasattr(leaf, "shape") and not isinstance(leaf, torch.Tensor)
