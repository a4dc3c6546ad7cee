"""Where a search's time goes: seconds and counts by stage."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.plan.schedule.deadline import Now

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


@dataclass
class Watch:
    """A clock that stands still while operators are measured: that is done once on a machine, and kept.

    Attributes:
        now: the clock.
        still: seconds that it stood still.

    Example:
        >>> at = iter([10.0, 11.0, 14.0, 15.0])
        >>> watch = Watch(lambda: next(at))
        >>> watch(), watch.beside(lambda graph: "costs")(None), watch()
        (10.0, 'costs', 12.0)
    """

    now: Now = time.monotonic
    still: float = 0.0

    def __call__(self) -> float:
        """Return seconds, less those that it stood still."""
        return self.now() - self.still

    def beside(self, costs_of: Callable[[Graph], Costs]) -> Callable[[Graph], Costs]:
        """Return the same, meanwhile the clock stands still."""

        def still(graph: Graph) -> Costs:
            began = self.now()
            try:
                return costs_of(graph)
            finally:
                self.still += self.now() - began

        return still
