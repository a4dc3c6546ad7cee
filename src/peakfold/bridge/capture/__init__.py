"""A PyTorch program becomes a Graph [MagPy, torch.export]."""

from peakfold.bridge.capture.captured import Captured, Missing
from peakfold.bridge.capture.step import capture_inference, capture_step

__all__ = ["Captured", "Missing", "capture_inference", "capture_step"]
