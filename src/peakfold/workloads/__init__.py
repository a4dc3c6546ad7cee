"""The named models, a training step of each of the seven of the MAGIS paper, and how to load one's own.

Transformers and MONAI (the extra ``bench``) are imported when a model is built, not before.
"""

from peakfold.workloads.build import BEYOND_NAMES, NAMES, block_classes, build
from peakfold.workloads.load import load_target
from peakfold.workloads.sizes import SIZES
from peakfold.workloads.target import Target

__all__ = ["BEYOND_NAMES", "NAMES", "SIZES", "Target", "block_classes", "build", "load_target"]
