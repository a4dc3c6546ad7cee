"""Names of devices, and the one that is current."""

from contextlib import AbstractContextManager, nullcontext

import torch


def kind_of(device: str) -> str:
    """Return the kind of a device.

    Example:
        >>> kind_of("cuda:1"), kind_of("cpu")
        ('cuda', 'cpu')
    """
    return device.partition(":")[0]


def current(device: str) -> AbstractContextManager[object]:
    """Have a device be the current one of its kind meanwhile, where a kind has several."""
    return torch.cuda.device(device) if kind_of(device) == "cuda" else nullcontext()
