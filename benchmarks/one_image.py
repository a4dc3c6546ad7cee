"""A U-Net on one image of 512 x 512, which has no batch to be split along: targets of the command line.

peakfold optimize benchmarks/one_image.py:train --fission --latency 1.25 --time-budget 30
peakfold pareto benchmarks/one_image.py:infer --measure
"""

from dataclasses import replace

import torch

from peakfold.workloads import Target, build

IMAGE = 512


def train() -> Target:
    """Return a training step, of the features of size cpu."""
    target = build("unet", "cpu", batch=1)
    batch = torch.rand(1, 3, IMAGE, IMAGE), torch.randint(2, (1, IMAGE, IMAGE))
    return replace(target, batch=batch)


def infer() -> Target:
    """Return the model alone."""
    target = build("unet", "cpu", batch=1, inference=True)
    return replace(target, batch=(torch.rand(1, 3, IMAGE, IMAGE),))
