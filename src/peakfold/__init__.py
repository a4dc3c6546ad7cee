"""peakfold: fit a PyTorch step into a budget of bytes or seconds, and prove it equal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peakfold.pipeline import (
        LatencyWarning,
        estimate,
        largest_batch,
        load,
        optimize_inference,
        optimize_step,
        share_arena,
    )

__version__ = "0.1.0"

__all__ = [
    "LatencyWarning",
    "__version__",
    "estimate",
    "largest_batch",
    "load",
    "optimize_inference",
    "optimize_step",
    "share_arena",
]


def __getattr__(name: str) -> object:
    """Import the pipeline, and torch with it, when one of the calls is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from peakfold import pipeline

    return getattr(pipeline, name)
