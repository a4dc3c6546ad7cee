"""peakfold: fit a PyTorch step into a budget of bytes or seconds, and prove it equal."""

__version__ = "0.1.0"
