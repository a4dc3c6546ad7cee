"""Which operators the tables know. One that they do not is a barrier: it runs as it stands, once.

Names here are those of packets: every overload of ``aten.add`` is meant by it.
"""

from peakfold.ir.graph import Graph
from peakfold.ops.flops import KERNELS
from peakfold.ops.inplace import FORMS

FAMILIES: dict[str, tuple[str, ...]] = {
    "made from nothing": (
        "arange", "empty", "empty_like", "empty_permuted", "empty_strided", "eye", "full", "full_like",
        "lift_fresh_copy", "linspace", "new_empty", "new_empty_strided", "new_full", "new_ones",
        "new_zeros", "ones", "ones_like", "scalar_tensor", "zeros", "zeros_like",
    ),
    "copied and arranged": (
        "_reshape_copy", "_to_copy", "_unsafe_view", "cat", "clone", "constant_pad_nd", "diag_embed",
        "flip", "gather", "index", "index_select", "masked_select", "pixel_shuffle", "pixel_unshuffle",
        "repeat", "reshape", "replication_pad1d", "replication_pad2d", "replication_pad3d",
        "reflection_pad1d", "reflection_pad2d", "roll", "select_scatter", "slice_scatter", "stack",
        "diagonal_scatter", "as_strided_scatter", "tril_indices", "triu_indices", "unfold_copy", "im2col",
        "col2im", "where", "upsample_bilinear2d", "upsample_nearest1d", "upsample_nearest2d",
        "upsample_nearest3d", "_unsafe_index", "one_hot",
    ),
    "views": (
        "alias", "as_strided", "chunk", "detach", "diagonal", "expand", "expand_as", "narrow", "permute",
        "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold",
        "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "unsqueeze", "view", "view_as",
    ),
    "gradients of copies": (
        "_index_put_impl", "_unsafe_index_put", "diagonal_backward",
        "embedding_dense_backward", "reflection_pad1d_backward", "reflection_pad2d_backward",
        "replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward",
        "select_backward", "slice_backward", "unfold_backward", "upsample_bilinear2d_backward",
        "upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward",
    ),
    "pointwise": (
        "bitwise_left_shift", "celu", "eq", "ge", "glu", "glu_backward", "gt", "hardswish_backward",
        "hypot", "isfinite", "isinf", "isnan", "le", "log_sigmoid_backward", "log_sigmoid_forward", "logit",
        "logical_xor", "lt", "mish_backward", "mse_loss", "mse_loss_backward", "nan_to_num", "ne",
        "prelu", "_prelu_kernel", "_prelu_kernel_backward", "rsub", "selu", "sgn", "sinc", "smooth_l1_loss",
        "smooth_l1_loss_backward", "huber_loss", "huber_loss_backward", "binary_cross_entropy",
        "binary_cross_entropy_backward", "binary_cross_entropy_with_logits", "xlogy",
    ),
    "reductions": (
        "all", "amax", "amin", "any", "argmax", "argmin", "argsort", "cumprod", "cumsum",
        "linalg_vector_norm", "logsumexp", "max", "mean", "median", "min", "norm", "prod", "sort", "std",
        "std_mean", "sum", "topk", "trace", "var", "var_mean",
    ),
    "normalization and pooling": (
        "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "_fused_rms_norm",
        "_fused_rms_norm_backward", "_safe_softmax",
        "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "adaptive_avg_pool2d",
        "adaptive_max_pool2d", "adaptive_max_pool2d_backward", "avg_pool2d", "avg_pool2d_backward",
        "avg_pool3d", "avg_pool3d_backward", "cudnn_batch_norm", "cudnn_batch_norm_backward",
        "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "max_pool3d_with_indices",
        "max_pool3d_with_indices_backward", "native_batch_norm", "native_batch_norm_backward",
        "native_group_norm", "native_group_norm_backward", "native_layer_norm",
        "native_layer_norm_backward", "_batch_norm_with_update_functional", "batch_norm_backward",
    ),
    "embedding and losses": (
        "embedding", "nll_loss2d_backward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss_forward",
    ),
    "random": (
        "bernoulli", "native_dropout", "native_dropout_backward", "normal", "rand", "rand_like", "randint",
        "randint_like", "randn", "randn_like", "randperm", "multinomial", "rrelu_with_noise_functional",
        "rrelu_with_noise_backward",
    ),
    "read by the host": ("_local_scalar_dense",),
    "gradient scaling": ("_amp_foreach_non_finite_check_and_unscale", "_amp_update_scale"),
}  # fmt: skip
"""Operators without a row in another table, by what they do."""

KNOWN: frozenset[str] = frozenset(
    {f"aten.{name}" for names in FAMILIES.values() for name in names}
    | {name.rsplit(".", 1)[0] for name in FORMS}
    | set(KERNELS)
)
"""Packets that some table has."""


def known(name: str) -> bool:
    """Return whether a table has an operator.

    Example:
        >>> known("aten.add.Tensor"), known("host.mul"), known("mylib.fused_thing.default")
        (True, True, False)
    """
    return name.startswith("host.") or name.rsplit(".", 1)[0] in KNOWN


def barriers(graph: Graph) -> tuple[str, ...]:
    """Return the operators of a graph that no table has, sorted.

    Example:
        >>> barriers(Graph((), (), ()))
        ()
    """
    return tuple(sorted({node.op.name for node in graph.nodes if not known(node.op.name)}))
