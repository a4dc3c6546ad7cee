"""The stages in order, each named, timed and dumpable; and the public calls."""

from peakfold.pipeline.anew import LatencyWarning
from peakfold.pipeline.api import (
    estimate,
    estimate_target,
    largest_batch,
    load,
    optimize_inference,
    optimize_step,
    optimize_target,
    share_arena,
)

__all__ = [
    "LatencyWarning",
    "estimate",
    "estimate_target",
    "largest_batch",
    "load",
    "optimize_inference",
    "optimize_step",
    "optimize_target",
    "share_arena",
]
