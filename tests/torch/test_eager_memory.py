"""Eager's memory without running equals what is measured when it runs."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from peakfold.bridge.capture.eager_memory import eager_memory
from peakfold.bridge.capture.hidden import onednn
from peakfold.bridge.runtime import measure

torch.set_num_threads(1)

GENERATOR = torch.get_rng_state().nbytes
"""Bytes that a checkpoint keeps to draw its dropout again; they are made outside of the dispatcher."""


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.Dropout(0.1), nn.ReLU(), nn.Linear(256, 64))
            for _ in range(4)
        )

    def forward(self, x, reentrant=None):
        for block in self.blocks:
            x = block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)
        return x


@pytest.mark.parametrize("reentrant", [None, True, False])
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD])
def test_peak_is_what_is_measured(reentrant, make):
    model, batch = Blocks(), (torch.randn(1000, 64).requires_grad_(reentrant is True),)
    optimizer = make(model.parameters(), lr=0.1)

    def loss(model, x):
        return model(x, reentrant).square().mean()

    predicted = eager_memory(model, loss, optimizer, batch).peak_bytes
    step = measure.eager_step(model, loss, optimizer, batch)
    held = measure.peak_bytes(step, resident=lambda: measure.resident_bytes(model, optimizer, batch))
    kept = 0 if reentrant is None else 4 * GENERATOR
    assert predicted + kept == held.peak_bytes


@pytest.mark.parametrize(
    ("x", "weight", "stride", "forward", "backward"),
    [
        ((8, 32, 32, 32), (32, 32, 3, 3), 1, 1085440, 2097152),
        ((16, 64, 24, 24), (256, 64, 1, 1), 1, 9437184, 11796480),
        ((16, 128, 24, 24), (128, 128, 3, 3), 2, 5308416, 8847360),
        ((16, 2048, 3, 3), (512, 2048, 1, 1), 1, 5373952, 4194304),
    ],
)
def test_what_convolutions_reorder(x, weight, stride, forward, backward):
    image, kernel = torch.empty(x), torch.empty(weight)
    rest = ([stride] * 2, [weight[2] // 2] * 2, [1, 1], False, [0, 0], 1)
    made = torch.ops.aten.convolution.default(image, kernel, None, *rest)
    assert onednn(torch.ops.aten.convolution.default, (image, kernel, None, *rest), {}) == forward
    args = (made, image, kernel, None, *rest, [True, True, False])
    assert onednn(torch.ops.aten.convolution_backward.default, args, {}) == backward
