"""Sizes of the models beyond the seven: ``tiny`` for tests, ``cpu`` for one core."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BeyondSize:
    """How large a model and its batch are.

    Attributes:
        batch: samples.
        width: channels, or length of an embedding.
        depth: layers, or blocks of the deepest stage.
        length: tokens of a sequence, or frames.
        image: pixels of a side.
        vocabulary: tokens.
        classes: of an image or a pixel.
    """

    batch: int
    width: int
    depth: int
    length: int
    image: int
    vocabulary: int = 64
    classes: int = 10


BEYOND_SIZES = {
    "tiny": BeyondSize(batch=4, width=16, depth=2, length=12, image=32),
    "cpu": BeyondSize(batch=8, width=128, depth=4, length=128, image=64, vocabulary=4096),
}

LONG_SIZES = {
    "tiny": BeyondSize(batch=1, width=8, depth=2, length=64, image=0),
    "cpu": BeyondSize(batch=1, width=256, depth=2, length=4096, image=0),
}
"""Of one long sequence."""
