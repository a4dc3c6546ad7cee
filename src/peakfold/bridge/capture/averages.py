"""``BatchNorm(momentum=None)`` while a program is captured: the cumulative average.

Its factor is one over a count that the module reads from a tensor. It becomes a recorded host number.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from peakfold.bridge.capture.tape import Tape


@contextmanager
def cumulative_averages(tape: Tape) -> Iterator[None]:
    """Have the counts that cumulative averages read inside be recorded."""
    plain = _BatchNorm.forward

    def forward(module: _BatchNorm, input: torch.Tensor) -> torch.Tensor:
        count = module.num_batches_tracked
        if count is None or not (module.training and module.track_running_stats and module.momentum is None):
            return plain(module, input)
        module._check_input_dim(input)  # type: ignore[no-untyped-call]
        count.add_(1)
        factor = 1.0 / tape.item(count)
        statistics = (module.running_mean, module.running_var)
        return F.batch_norm(input, *statistics, module.weight, module.bias, True, factor, module.eps)

    with patch.object(_BatchNorm, "forward", forward):
        yield
