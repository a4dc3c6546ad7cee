"""What a search is for: limits, how near a plan comes to them, and where to look next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from peakfold.plan.schedule.explore import Candidate, Explorer

Rank = tuple[float, float]
FrontRank = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Goal:
    """The limits of a search; None for free.

    Attributes:
        memory: most bytes at once.
        latency: most seconds of a step.
    """

    memory: int | None
    latency: float | None

    @property
    def seconds(self) -> float:
        """Most seconds of a step."""
        return np.inf if self.latency is None else self.latency

    @property
    def by_bytes(self) -> bool:
        """Whether bytes are what is least: seconds alone are limited."""
        return self.memory is None and self.latency is not None

    def keeps(self, peak_bytes: int, seconds: float) -> bool:
        """Whether a plan is within the limits."""
        return seconds <= self.seconds and (self.memory is None or peak_bytes <= self.memory)

    def order(self, peak_bytes: int, seconds: float) -> Rank:
        """How good a plan within the limits is; less is better.

        Example:
            >>> Goal(None, 1.0).order(5, 0.5), Goal(9, None).order(5, 0.5)
            ((5, 0.5), (0.5, 5))
        """
        return (peak_bytes, seconds) if self.by_bytes else (seconds, peak_bytes)

    def best(self, explorer: Explorer) -> Candidate | None:
        """Return the best plan found that keeps the limits."""
        if self.memory is not None:
            return explorer.within(self.memory, self.seconds)
        if self.latency is not None:
            return explorer.lowest(self.latency)
        return explorer.within(explorer.plain.peak)

    def score(self, best: Candidate | None) -> float:
        """What is minimized; infinite while the limits are not kept."""
        if best is None:
            return np.inf
        return float(best.peak) if self.by_bytes else best.seconds

    def rank(self, explorer: Explorer) -> Rank:
        """How good a search stands; less is better."""
        lowest = explorer.lowest(self.seconds)
        reached = np.inf if lowest is None else lowest.peak
        return (self.score(self.best(explorer)), reached if self.latency else min(reached, explorer.driest))

    def done(self, explorer: Explorer) -> bool:
        """Whether nothing can be gained: the plan without recomputation keeps the limits."""
        plain = explorer.plain
        slow = plain.seconds > self.seconds
        return (
            not slow
            and (self.latency is None or self.memory is not None)
            and (self.memory is None or plain.peak <= self.memory)
        )

    def targets(self, explorer: Explorer, bound: int) -> Iterator[int]:
        """Yield the target of each annealing: the budget, and often one beside it."""
        for share in cycle((1.0, 0.97, 1.0, 0.9, 1.0, 1.05)):
            if self.memory is not None:
                yield int(self.memory * share) if share >= 1 or self.best(explorer) else self.memory
            else:
                best = self.best(explorer)
                peak = explorer.plain.peak if best is None else best.peak
                yield max(bound, int(peak * min(share, 1.0) * 0.99))


def front_rank(explorer: Explorer, budgets: Sequence[int]) -> FrontRank:
    """How a search stands: budgets that are out of its reach, those that no plan keeps yet, seconds.

    Within reach is what a plan keeps, or one that keeps next to nothing (`dry`).
    """
    found = [explorer.within(budget) for budget in budgets]
    beyond = sum(
        item is None and budget < explorer.driest for item, budget in zip(found, budgets, strict=True)
    )
    return (float(beyond), float(found.count(None)), sum(item.seconds for item in found if item is not None))
