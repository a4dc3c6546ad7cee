"""The roofline against a figure from the literature.

MAGIS (ASPLOS 2024) reports about 390 ms for an eager U-Net step, batch 32 of 256^2, on an RTX 3090. The
monai U-Net of the workloads has half the widths of the classic one, and takes 224 ms on the same ruler.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from peakfold.bridge.capture import capture_step
from peakfold.cost.roofline import estimate


class Pair(nn.Sequential):
    def __init__(self, before, after):
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1),
            nn.ReLU(),
        )


class ClassicUNet(nn.Module):
    """The U-Net of 2015 with padded convolutions and no normalization, as MAGIS builds it."""

    def __init__(self, widths=(64, 128, 256, 512, 1024)):
        super().__init__()
        self.down = nn.ModuleList(Pair(a, b) for a, b in pairwise((3, *widths)))
        steps = list(pairwise(widths[::-1]))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in steps)
        self.up = nn.ModuleList(Pair(a, b) for a, b in steps)
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x):
        kept = []
        for i, pair in enumerate(self.down):
            x = pair(x if i == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for grow, pair in zip(self.grow, self.up, strict=True):
            x = pair(torch.cat((kept.pop(), grow(x)), 1))
        return self.head(x)


def test_the_eager_unet_takes_about_what_the_literature_reports():
    with torch.device("meta"):
        model = ClassicUNet()
        x, y = torch.empty(32, 3, 256, 256), torch.empty(32, 2, 256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    captured = capture_step(model, lambda model, x, y: F.mse_loss(model(x), y), optimizer, (x, y))
    seconds = sum(estimate(captured.graph, "rtx3090").seconds.values())
    assert 0.9 * 0.390 < seconds < 1.1 * 0.390
