"""The links of operators, by packet: every overload of ``aten.add`` is meant by ``add``.

An operator without a line is a barrier: no region goes through it.
"""

from collections.abc import Mapping

from peakfold.ops.links import spatial, special, views
from peakfold.ops.links.model import Links, Rule
from peakfold.ops.links.notation import links, pointwise, reduction


def _named(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


SCALED = _named(  # by a number, or by the other operand
    "neg div negative positive real imag conj_physical threshold_backward"
    " hardtanh_backward leaky_relu_backward gelu_backward silu_backward tanh_backward sigmoid_backward"
    " relu_backward softplus_backward elu_backward native_dropout_backward hardswish_backward"
    " hardsigmoid_backward mish_backward log_sigmoid_backward",
    pointwise(linear=((0,),)),
)

POINTWISE = _named(
    "abs acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu"
    " clamp clamp_max clamp_min cos cosh digamma elu eq erf erfc erfinv exp exp2 expm1 floor fmax fmin fmod"
    " floor_divide ge gelu gt hardsigmoid hardswish hardtanh hypot isfinite isinf isnan le leaky_relu lerp"
    " lgamma log log10 log1p log2 log_sigmoid_forward logaddexp logical_and logical_not logical_or"
    " logical_xor logit lt maximum minimum mish nan_to_num ne pow reciprocal relu relu6"
    " remainder round rsqrt rsub selu sgn sigmoid sign silu sin sinc sinh softplus sqrt square tan tanh"
    " threshold trunc xlogy addcdiv addcmul isneginf isposinf copysign"
    " bitwise_left_shift bitwise_right_shift fill",
    pointwise(),
)

SUMS = _named("add sub", pointwise(linear=((0, 1),)))

MADE = _named(
    "full zeros ones new_zeros new_ones new_full empty new_empty empty_strided new_empty_strided"
    " empty_permuted scalar_tensor",
    views.made,
)

TABLE: Mapping[str, Rule] = {
    **POINTWISE,
    **SCALED,
    **SUMS,
    **MADE,
    "mul": pointwise(linear=((0,), (1,))),
    "where": pointwise(linear=((1, 2),)),
    "copy": pointwise(linear=((1,),)),
    "prelu": special.prelu,
    "_prelu_kernel": pointwise(),
    "masked_fill": special.masked_fill,
    "_to_copy": special.to_copy,
    **_named("full_like zeros_like ones_like empty_like", pointwise()),
    **_named("tril triu", special.but_last_two),
    # products
    "mm": links("m k, k n -> m n", linear=((0,), (1,))),
    "addmm": links("n, m k, k n -> m n", linear=((0, 1), (0, 2)), added=(0,)),
    "bmm": links("b m k, b k n -> b m n", linear=((0,), (1,))),
    "baddbmm": links("b m n, b m k, b k n -> b m n", linear=((0, 1), (0, 2)), added=(0,)),
    "mv": links("m k, k -> m", linear=((0,), (1,))),
    "dot": links("k, k ->", linear=((0,), (1,))),
    "convolution": special.convolution,
    "convolution_backward": special.convolution_backward,
    # views and copies
    **_named("view reshape _unsafe_view _reshape_copy squeeze", views.view),
    **_named("transpose t", views.transpose),
    **_named("alias detach clone contiguous lift_fresh_copy", views.same),
    "permute": views.permute,
    "unsqueeze": views.unsqueeze,
    "select": views.select,
    "expand": views.expand,
    "repeat": views.repeat,
    "slice": views.along(1),
    "split": views.along(2),
    "split_with_sizes": views.along(2),
    "unbind": views.unbind,
    "flip": pointwise(but=1, linear=((0,),)),
    "cat": views.cat,
    "stack": views.stack,
    "select_backward": views.select_backward,
    "slice_backward": views.along(2),
    "select_scatter": views.select_scatter,
    "slice_scatter": views.along(2, linear=((0, 1),), moves=False),
    "constant_pad_nd": views.pad,
    "roll": views.roll,
    "scatter": views.along(1, linear=((0, 3),), moves=False),
    **_named("index_add scatter_add", views.along(1, linear=((0, 3),), moves=False)),
    "index_select": views.along(1),
    "gather": special.gather,
    "index": special.index,
    "embedding": special.embedding,
    "embedding_dense_backward": special.embedding_backward,
    # reductions
    "sum": reduction("sum", linear=((0,),)),
    "mean": reduction(None, linear=((0,),)),
    "logsumexp": reduction("logaddexp"),
    "amax": reduction("max"),
    "amin": reduction("min"),
    "all": reduction("all"),
    "any": reduction("any"),
    "prod": reduction("prod"),
    **_named("var std var_mean std_mean argmax argmin", reduction(None)),
    "linalg_vector_norm": reduction(None, dims=2, keep=3),
    "topk": views.along(2, default=-1, linear=(), moves=False),
    "cumsum": special.running("sum"),
    "cumprod": special.running("prod"),
    "sort": special.sort,
    # softmax and normalization
    **_named("_softmax _log_softmax _safe_softmax softmax log_softmax", pointwise(but=1)),
    **_named("_softmax_backward_data _log_softmax_backward_data", pointwise(but=2, linear=((0,),))),
    "native_group_norm": special.group_norm,
    "native_group_norm_backward": special.group_norm_backward,
    "native_layer_norm": special.layer_norm,
    "native_layer_norm_backward": special.layer_norm_backward,
    **_named(
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional", special.batch_norm
    ),
    "native_batch_norm_backward": special.batch_norm_backward,
    # attention and losses
    "_scaled_dot_product_flash_attention_for_cpu": special.attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": special.attention_backward,
    **_named("nll_loss_forward nll_loss2d_forward", special.nll_forward),
    **_named("nll_loss_backward nll_loss2d_backward", special.nll_backward),
    **_named("mse_loss smooth_l1_loss huber_loss", special.elementwise_loss(2)),
    "binary_cross_entropy": special.elementwise_loss(3),
    "binary_cross_entropy_with_logits": special.elementwise_loss(4),
    **_named(
        "mse_loss_backward smooth_l1_loss_backward huber_loss_backward",
        special.elementwise_loss_backward(3),
    ),
    "binary_cross_entropy_backward": special.elementwise_loss_backward(4),
    # pools and resampling
    **_named(
        "upsample_bilinear2d upsample_nearest2d upsample_bilinear2d_backward upsample_nearest2d_backward",
        links("n c . . -> n c . .", linear=((0,),)),
    ),
    "max_pool2d_with_indices": spatial.max_pool,
    "max_pool2d_with_indices_backward": spatial.max_pool_backward,
    "avg_pool2d": spatial.avg_pool,
    "avg_pool2d_backward": spatial.avg_pool_backward,
    "_adaptive_avg_pool2d": links("n c . . -> n c . .", linear=((0,),)),
    "_adaptive_avg_pool2d_backward": links("n c . ., n c . . -> n c . ."),
    **_named("replication_pad2d reflection_pad2d", spatial.padded(1, 1)),
    **_named("replication_pad2d_backward reflection_pad2d_backward", spatial.padded(2, 2)),
}
"""The rule of each packet, without ``aten.``."""


def rule_of(name: str) -> Rule | None:
    """Return the rule of an operator by its qualified name; None for a barrier.

    Example:
        >>> rule_of("aten.mm.default") is TABLE["mm"], rule_of("mylib.fused.default")
        (True, None)
    """
    space, _, rest = name.partition(".")
    return TABLE.get(rest.split(".")[0]) if space == "aten" else None


NO_LINKS = Links()
"""Of a barrier: it runs whole."""
