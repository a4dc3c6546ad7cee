"""How long stages say where they are."""

from typing import Protocol


class Progress(Protocol):
    """Called by long stages.

    Args:
        stage: e.g. ``"capture"``, ``"profile"``, ``"search"``, ``"codegen"``, ``"verify"``.
        done: fraction of the stage, 0 to 1.
        note: what is happening, short.
    """

    def __call__(self, stage: str, done: float, note: str = "") -> None:
        """Take note of where a stage is."""


def silent(stage: str, done: float, note: str = "") -> None:
    """Say nothing."""
