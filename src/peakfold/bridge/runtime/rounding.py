"""What rounding alone decides of a program's results, by Monte Carlo arithmetic [Parker 1997].

Adam divides a gradient by its own root mean square. Where the gradient is zero in exact arithmetic, such as
that of a bias before a normalization, roundoff is divided by roundoff: the new parameter has no digit that
the program decides. Two right programs that sum in another order differ there by far more than either
rounds. So the original is run several times with each result of its operators moved by one rounding, at
random; how far its own results spread says which of their digits it decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from peakfold.bridge.runtime.compare import Result
from peakfold.bridge.runtime.verify import Observed

RUNS = 8
SURE = 16.0
"""Standard deviations. With 8 runs, Student's t is beyond it once in four million."""

_ROUNDED = """
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _log_softmax _log_softmax_backward_data _softmax
_softmax_backward_data add addbmm addcdiv addcmul addmm addmv avg_pool2d avg_pool2d_backward baddbmm
bmm convolution convolution_backward cos cumprod cumsum div dot einsum embedding_dense_backward erf
exp expm1 gelu gelu_backward index_add linear log log1p log_sigmoid_forward logsumexp matmul mean mm
mse_loss mse_loss_backward mul mv native_batch_norm native_batch_norm_backward native_group_norm
native_group_norm_backward native_layer_norm native_layer_norm_backward nll_loss_backward
nll_loss_forward norm pow prod reciprocal rsqrt rsub sigmoid sigmoid_backward silu silu_backward sin
softplus softplus_backward sqrt std sub sum tanh tanh_backward upsample_bilinear2d
upsample_bilinear2d_backward var var_mean
"""
ROUNDS = frozenset(_ROUNDED.split())
"""Operators whose results are rounded. One that is missing makes the comparison stricter, never laxer;
what only moves or chooses numbers must not be here, since programs ask whether two such are the same."""

OpOverload = torch._ops.OpOverload


class Rounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves each number that an operator rounds by one unit in the last place, up or down at random.

    Example:
        >>> third = torch.ones(2, dtype=torch.float64) / 3
        >>> with Rounded(0):
        ...     other = torch.ones(2, dtype=torch.float64) / 3
        >>> bool((third != other).all()), bool(torch.allclose(third, other, rtol=1e-15, atol=0))
        (True, True)
    """

    supports_higher_order_operators = True

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        made = func(*args, **(kwargs or {}))
        if str(getattr(func, "overloadpacket", func)).removeprefix("aten.") in ROUNDS:
            for leaf in pytree.tree_leaves(made):
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                    self._move(leaf)
        return made

    def _move(self, result: torch.Tensor) -> None:
        step = torch.finfo(result.dtype).eps
        up = torch.rand(result.shape, generator=self.generator).to(result.device) < 0.5
        result.mul_(up.to(result.dtype).mul_(2 * step).add_(1 - step))


@dataclass(frozen=True)
class Spread:
    """How far rounding moves each number that the original leaves.

    Attributes:
        far: by name of a result: `SURE` standard deviations of each element, from the unmoved run.
    """

    far: Mapping[str, torch.Tensor]

    @staticmethod
    def of(original: Observed, moved: Sequence[Observed]) -> "Spread":
        """Return the spread of some runs, each of which rounds in its own way."""
        others = [{result.name: result.tensor.detach() for result in seen.results} for seen in moved]
        return Spread(
            {
                result.name: _spread(result.tensor.detach(), [other[result.name] for other in others])
                for result in original.results
                if result.tensor.is_floating_point() and all(result.name in other for other in others)
            }
        )

    def settled(self, original: Observed, found: Observed, bound: Mapping[str, float]) -> "Settled":
        """Return what was found, with each number taken for the original's own that rounding alone decides.

        Args:
            original: what eager left.
            found: what the program left.
            bound: by name, by how much each number may be off in any case.
        """
        by_name = {result.name: result for result in original.results}
        made = [self._settle(by_name.get(result.name), result, bound) for result in found.results]
        return Settled(replace(found, results=tuple(result for result, _ in made)), sum(n for _, n in made))

    def _settle(
        self, original: Result | None, found: Result, bound: Mapping[str, float]
    ) -> tuple[Result, int]:
        far = self.far.get(found.name)
        if original is None or far is None or original.tensor.shape != found.tensor.shape:
            return found, 0
        right, other = original.tensor.detach(), found.tensor.detach()
        gap = (right - other).abs()
        open_ = (gap > bound[found.name]) & (gap <= far)
        return replace(found, tensor=torch.where(open_, right, other)), int(open_.sum())


@dataclass(frozen=True)
class Settled:
    """What a program left, where the original decides it.

    Attributes:
        found: with the original's own numbers where rounding alone decides.
        undecided: how many numbers these are.
    """

    found: Observed
    undecided: int


def _spread(right: torch.Tensor, moved: Sequence[torch.Tensor]) -> torch.Tensor:
    squares = torch.stack([(other - right).abs().square() for other in moved])
    far: torch.Tensor = SURE * squares.mean(0).sqrt()
    return far
