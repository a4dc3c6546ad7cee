"""What torch's CPU kernels do that neither schemas nor fake tensors say."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import _disable_current_modes

from peakfold.bridge.capture.storage import Geometry

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload

REDUCTION_AT: Mapping[OpOverload, int] = {
    aten.mse_loss.default: 2,
    aten.smooth_l1_loss.default: 2,
    aten.soft_margin_loss.default: 2,
    aten.binary_cross_entropy.default: 3,
}
"""Losses whose scalar keeps the storage of all elements, with the place of the argument ``reduction``."""

_REDUCE: Mapping[int, OpOverload] = {1: aten.mean.default, 2: aten.sum.default}


def elements_first(func: OpOverload, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return how to compute a reduced loss as two operators, None for everything else.

    The kernel does the same two, bit for bit, but its scalar holds the bytes of every element for as
    long as it lives.

    Example:
        >>> x, y = torch.ones(3, 2), torch.zeros(3, 2)
        >>> elements_first(aten.mse_loss.default, (x, y, 2))(x, y)
        tensor(6.)
        >>> elements_first(aten.mse_loss.default, (x, y, 0)) is None
        True
    """
    place = REDUCTION_AT.get(func)
    if place is None:
        return None
    reduce = _REDUCE.get(args[place] if len(args) > place else 1)
    if reduce is None:
        return None
    filler = (None,) * place

    def both(*given: Any, **kwargs: Any) -> Any:
        before = (*given[:place], *filler)[:place]
        return reduce(func(*before, 0, *given[place + 1 :], **kwargs))

    return both


_CONTIGUOUS: frozenset[OpOverload] = frozenset(
    (
        aten.mse_loss_backward.default,
        aten.smooth_l1_loss_backward.default,
        aten.huber_loss_backward.default,
        aten.log_sigmoid_forward.default,
        aten._log_softmax_backward_data.default,
        aten.native_layer_norm_backward.default,
    )
)
"""Operators whose outputs are row-major, whatever the operands are."""

_SUGGESTED: Mapping[OpOverload, int] = {
    aten.native_batch_norm.default: 0,
    aten.native_batch_norm_backward.default: 1,
    aten.replication_pad2d_backward.default: 1,
    aten.reflection_pad2d_backward.default: 1,
    aten.roll.default: 0,
}
"""Operators whose first output is row-major or channels last, as one argument is."""

_LIKE_FIRST: frozenset[OpOverload] = frozenset(
    (
        aten.hardswish_backward.default,
        aten.elu_backward.default,
        aten.softplus_backward.default,
        aten.hardtanh_backward.default,
        aten.hardsigmoid_backward.default,
    )
)
"""Operators whose output has the strides of the first argument where that one is dense."""


def run_fake(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator on fake tensors; one that fake tensors refuse and the CPU runs is told its shape."""
    if func is aten._grouped_mm.default and args[0].device.type == "cpu":
        return _grouped_product(*args, **kwargs)
    return func(*args, **kwargs)


def _grouped_product(
    left: torch.Tensor, right: torch.Tensor, offs: torch.Tensor | None = None, bias: object = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the fake product of groups, which torch says for bfloat16 only."""
    rows, columns = left.shape[-2], right.shape[-1]
    batched = left.dim() == right.dim()
    groups = () if not batched else (left.shape[0],) if offs is None or left.dim() == 3 else (offs.shape[0],)
    return left.new_empty((*groups, rows, columns), dtype=out_dtype or left.dtype)


def as_eager(func: OpOverload, args: tuple[Any, ...], result: Any) -> Any:
    """Return a fake result with the strides that the CPU kernel gives."""
    if func is RECURRENT:
        return (*result[:3], _kept_by_recurrence(args))
    if func in _CONTIGUOUS:
        return _each(_row_major, result)
    if func in _SUGGESTED and not (isinstance(result, tuple) and result[0] is None):
        like = args[_SUGGESTED[func]]
        first = result[0] if isinstance(result, tuple) else result
        made = torch.empty_like(first, memory_format=suggest_memory_format(like))
        return (made, *result[1:]) if isinstance(result, tuple) else made
    if func in _LIKE_FIRST and Geometry.of(args[0]).is_dense:
        return torch.empty_like(args[0])
    return result


RECURRENT = aten.mkldnn_rnn_layer.default


def _kept_by_recurrence(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Return what oneDNN keeps of a recurrent layer for the backward pass: None without one."""
    if not torch.is_grad_enabled():
        return None
    return torch.empty(recurrent_workspace(args), dtype=torch.uint8)


def recurrent_workspace(args: tuple[Any, ...]) -> int:
    """Return the bytes that oneDNN keeps of a recurrent layer, which it alone knows: one layer is run.

    Example:
        >>> x, hidden = torch.empty(5, 3, 8), torch.empty(3, 16)
        >>> weights = torch.empty(64, 8), torch.empty(64, 16), torch.empty(64), torch.empty(64)
        >>> rest = (False, [], 2, 16, 2, True, False, False, True)
        >>> recurrent_workspace((x, *weights, hidden, hidden, *rest)) > 0
        True
    """
    tensors = tuple((tuple(arg.shape), arg.dtype) for arg in args[:7])
    rest = tuple(tuple(arg) if isinstance(arg, list | tuple) else arg for arg in args[7:])
    return _workspace_of(tensors, rest)


@cache
def _workspace_of(tensors: tuple[Any, ...], rest: tuple[Any, ...]) -> int:
    with _disable_current_modes(), torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        given = [torch.zeros(shape, dtype=dtype) for shape, dtype in tensors]
        return int(RECURRENT(*given, *rest)[3].numel())


def _row_major(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None or tensor.is_contiguous():
        return tensor
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _each(change: Callable[[Any], Any], result: Any) -> Any:
    return tuple(map(change, result)) if isinstance(result, tuple) else change(result)
