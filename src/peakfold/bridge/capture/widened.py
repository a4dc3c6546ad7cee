"""A model in float64 throughout: what its own code casts down is cast to float64."""

from collections.abc import Mapping, Sequence

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

NARROW = frozenset((torch.float32, torch.float16, torch.bfloat16))
"""Types that a model in float64 may ask for, and that round what it computes."""

_BITS = torch.ops.aten.view.dtype
OpOverload = torch._ops.OpOverload


class Widened(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Has each operator that turns a tensor into a narrower floating type give float64.

    `Module.double` leaves the casts in a model's code: attention that is taken in float32 is rounded to it in
    a float64 program as well. New tensors that are made of none are as the code says.

    Example:
        >>> third = torch.tensor(1 / 3, dtype=torch.float64)
        >>> with Widened():
        ...     bool(third.float() == third)
        True
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        leaves, tree = pytree.tree_flatten((args, dict(kwargs or {})))
        if func is not _BITS and any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            leaves = [_wide(leaf) for leaf in leaves]
        args, keywords = pytree.tree_unflatten(leaves, tree)
        return func(*args, **keywords)


def _wide(leaf: object) -> object:
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf in NARROW else leaf
