"""In-place operators as functional ones, and views backwards: data about ATen's naming."""

from collections.abc import Mapping

import torch

from peakfold.bridge.capture.places import model_line
from peakfold.bridge.capture.storage import HOLE, Geometry, View, ViewCall
from peakfold.errors import CaptureError

aten = torch.ops.aten

_IRREGULAR: Mapping[str, torch._ops.OpOverload] = {
    "aten::bernoulli_.float": aten.bernoulli.p,
    "aten::bernoulli_.Tensor": aten.bernoulli.Tensor,
    "aten::normal_": aten.normal_functional.default,
    "aten::_amp_foreach_non_finite_check_and_unscale_": (
        aten._amp_foreach_non_finite_check_and_unscale.default
    ),
    "aten::_index_put_impl_": aten._index_put_impl.default,
}

SILENT: Mapping[torch._ops.OpOverload, torch._ops.OpOverload] = {
    aten.native_batch_norm.default: aten._native_batch_norm_legit_functional.default,
}
"""Operators that write into arguments which their schema does not mark."""

DRAWS_IN_LOGICAL_ORDER = frozenset((aten.bernoulli.p, aten.bernoulli.Tensor))
"""Functional draws that give a contiguous tensor, whereas the in-place ones keep strides."""

_DRAWS: frozenset[str] = frozenset(
    ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention",
     "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention")
)  # fmt: skip


def functional(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the operator that computes what an in-place or ``out=`` operator writes; None for none.

    Where the operator also returns new tensors, these come first.

    Example:
        >>> functional(aten.add_.Tensor), functional(aten.bernoulli_.float)
        (<OpOverload(op='aten.add', overload='Tensor')>, <OpOverload(op='aten.bernoulli', overload='p')>)
        >>> functional(aten.pow_.Scalar)  # pow.Scalar takes a number to the power of a tensor
        <OpOverload(op='aten.pow', overload='Tensor_Scalar')>
        >>> functional(aten.rrelu_with_noise.default)  # returns a tensor, and writes the noise
        <OpOverload(op='aten.rrelu_with_noise_functional', overload='default')>
    """
    schema = op._schema
    full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    if full in _IRREGULAR:
        return _IRREGULAR[full]
    namespace, name = schema.name.split("::")
    plain = name.removesuffix("_")
    for candidate in (plain, f"{plain}_functional"):
        packet = getattr(getattr(torch.ops, namespace), candidate, None)
        if packet is None:
            continue
        named = getattr(packet, op._overloadname, None) if name.endswith("_") else None
        if named is not None and _types(named) == _types(op) and not named._schema.is_mutable:
            return named  # type: ignore[no-any-return]
        found = _of_the_same_arguments(op, packet)
        if found is not None:
            return found
    return None


def _types(op: torch._ops.OpOverload) -> list[str]:
    return [str(argument.type) for argument in op._schema.arguments]


def _of_the_same_arguments(
    op: torch._ops.OpOverload, packet: torch._ops.OpOverloadPacket
) -> torch._ops.OpOverload | None:
    given = [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]
    for overload in packet.overloads():  # type: ignore[no-untyped-call]
        candidate = getattr(packet, overload)
        if candidate._schema.is_mutable:
            continue
        if [(a.name, str(a.type)) for a in candidate._schema.arguments] == given:
            return candidate  # type: ignore[no-any-return]
    return None


def draws(op: torch._ops.OpOverload, arguments: Mapping[str, object]) -> bool:
    """Whether a call takes numbers from the random generator's stream."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    if "dropout_p" in arguments:
        return bool(arguments["dropout_p"])
    if op._schema.name == "aten::native_dropout":
        return bool(arguments["train"])
    if "training" in arguments:
        return bool(arguments["training"])
    return op._schema.name not in _DRAWS


Inverse = tuple[torch._ops.OpOverload, tuple[object, ...]]
"""An operator and its arguments: `HOLE` for the old whole, `NEW` for the new part."""


class _New:
    pass


NEW = _New()


def _scatter_slice(part: Geometry, dim: int, start: int) -> Inverse:
    return aten.slice_scatter.default, (HOLE, NEW, dim, start, start + part.shape[dim])


def _permute(call: ViewCall, rank: int) -> Inverse:
    (dims,) = call.args[1:]
    inverse = [0] * rank
    for place, dim in enumerate(dims):  # type: ignore[arg-type, var-annotated]
        inverse[dim % rank] = place
    return aten.permute.default, (NEW, inverse)


_SAME: frozenset[torch._ops.OpOverload] = frozenset((aten.t.default, aten.transpose.int))
_SPLITS: frozenset[torch._ops.OpOverload] = frozenset(
    (aten.split.Tensor, aten.split_with_sizes.default, aten.unsafe_split.Tensor,
     aten.unsafe_split_with_sizes.default)
)  # fmt: skip
_RESHAPE: frozenset[torch._ops.OpOverload] = frozenset(
    (aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.default,
     aten.squeeze.dim, aten.squeeze.dims, aten._reshape_alias.default)
)  # fmt: skip
_UNDONE_BY: Mapping[torch._ops.OpOverload, torch._ops.OpOverload] = {
    aten.view_as_real.default: aten.view_as_complex.default,
    aten.view_as_complex.default: aten.view_as_real.default,
    aten._conj.default: aten._conj_physical.default,
    aten._neg_view.default: aten.neg.default,
}
"""Views of numbers of another kind: what undoes each."""


def inverse(call: ViewCall, index: int, whole: Geometry) -> Inverse:
    """Return how to make a new whole from the old one and a new value of output ``index``."""
    op, args = call.op, call.args
    part = call.outputs[index]
    if op in _SAME:
        return op, (NEW, *args[1:])
    if op in _UNDONE_BY:
        return _UNDONE_BY[op], (NEW,)
    if op is aten.view.dtype:
        return op, (NEW, whole.dtype)
    if op is aten.permute.default:
        return _permute(call, len(whole.shape))
    if op in _RESHAPE:
        return aten.reshape.default, (NEW, list(whole.shape))
    if op is aten.select.int:
        return aten.select_scatter.default, (HOLE, NEW, *args[1:])
    if op is aten.slice.Tensor:
        return aten.slice_scatter.default, (HOLE, NEW, *args[1:])
    if op is aten.diagonal.default:
        return aten.diagonal_scatter.default, (HOLE, NEW, *args[1:])
    if op is aten.unbind.int:
        return aten.select_scatter.default, (HOLE, NEW, args[1] if len(args) > 1 else 0, index)
    if op in _SPLITS:
        dim = int(args[2]) if len(args) > 2 else 0  # type: ignore[call-overload]
        start = sum(other.shape[dim] for other in call.outputs[:index])
        return _scatter_slice(part, dim, start)
    strided = (HOLE, NEW, list(part.shape), list(part.strides), part.offset - whole.offset)
    return aten.as_strided_scatter.default, strided


def written_into(view: View, call: ViewCall) -> View:
    """Return the tensor that what is written into a view is scattered into: what it was viewed from.

    ``as_strided`` counts in the storage and not in the tensor: with it, that is all of the storage.
    """
    above = view.parent
    assert above is not None
    op, _ = inverse(call, view.index, above.geometry)
    if op is not aten.as_strided_scatter.default:
        return above
    while above.parent is not None and not _is_of_another_kind(above):
        above = above.parent
    if above.parent is not None and above.parent.is_part:
        raise CaptureError(
            stage="capture",
            what=f"a tensor is written through {call.op}, of a part that is seen as of another kind",
            where=model_line(),
            expected="views that are slices, or of a whole tensor",
            hint="write into a clone() of the part, and copy it back",
        )
    return above


def _is_of_another_kind(view: View) -> bool:
    return view.call is not None and (view.call.op in _UNDONE_BY or view.call.op is aten.view.dtype)
