"""Where a search's time goes: seconds and counts by stage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

Stage = Literal[
    "unsplit", "candidates", "footprints", "compile", "moves", "hashing", "sketch", "measure", "plan"
]
"""The plan that splits nothing; what could be split; what each does to bytes; compiling on a
new machine; neighbours of states; their
hashes and the filter of duplicates; estimates; costs of parts; planning as a whole."""


@dataclass
class Clock:
    """Seconds and counts by stage.

    Attributes:
        seconds: spent in each stage.
        counts: how often; of hashing, the states that were hashed.
        duplicates: states that were filtered because their hash was known.
    """

    seconds: dict[Stage, float] = field(default_factory=dict)
    counts: dict[Stage, int] = field(default_factory=dict)
    duplicates: int = 0

    def add(self, stage: Stage, seconds: float, count: int = 1) -> None:
        """Add what a stage took."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self.counts[stage] = self.counts.get(stage, 0) + count

    @contextmanager
    def at(self, stage: Stage) -> Iterator[None]:
        """Count what happens inside as one go of a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - began)
