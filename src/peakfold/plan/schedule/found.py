"""What a search gives: the best plan, the front, and word of its progress."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from peakfold.errors import PlanError
from peakfold.ir.plan import Plan

StopReason = Literal["nothing to do", "converged", "iterations", "time", "interrupted"]


@dataclass(frozen=True, slots=True)
class Point:
    """A plan and what it comes to.

    Attributes:
        peak_bytes: predicted most bytes at once.
        seconds: predicted time of one step.
        plan: the decisions.
    """

    peak_bytes: int
    seconds: float
    plan: Plan


def require_peak(decoded: int, simulated: int) -> None:
    """Raise unless a plan comes to what the search decoded."""
    if simulated != decoded:
        raise PlanError(
            stage="plan",
            what="a plan does not come to what the search found",
            expected=f"a peak of {decoded} bytes",
            got=f"{simulated} bytes",
            hint="this is a fault of peakfold: please report it with the graph",
        )


def front_of(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return the points that no other beats in both bytes and seconds, from the highest peak to the lowest.

    Of equals the first stays.
    """
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.peak_bytes, p.seconds)):
        if not found or point.seconds < found[-1].seconds:
            found.append(point)
    return tuple(reversed(found))


@dataclass(frozen=True)
class Found:
    """What a search ends with.

    Attributes:
        plan: the decisions.
        peak_bytes: predicted most bytes at once.
        seconds: predicted time of one step.
        lower_bound_bytes: a proven lower bound of the peak of every plan.
        stop_reason: why the search ended.
        states: number of plans that were decoded.
        front: plans met on the way, from the highest peak to the lowest: each is the fastest found within
            its peak, so that seconds rise.
        elapsed: seconds that planning took.
    """

    plan: Plan
    peak_bytes: int
    seconds: float
    lower_bound_bytes: int
    stop_reason: StopReason
    states: int
    front: tuple[Point, ...]
    elapsed: float

    @property
    def point(self) -> Point:
        """The best plan as a point of the front."""
        return Point(self.peak_bytes, self.seconds, self.plan)


@dataclass(frozen=True)
class Front:
    """One plan for each budget.

    Attributes:
        budgets: bytes, as asked.
        points: the fastest plan found within each; None where none was found.
        lower_bound_bytes, stop_reason, states, elapsed: as in `Found`.
        between: plans met that no other beats, evenly thinned; none where they were not asked for.
    """

    budgets: tuple[int, ...]
    points: tuple[Point | None, ...]
    lower_bound_bytes: int
    stop_reason: StopReason
    states: int
    elapsed: float
    between: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands: given to the callback after each of its parts.

    Attributes:
        states: number of plans decoded.
        elapsed: seconds since it began.
        share: how much of the time or the iterations is used, 0 to 1.
        peak_bytes, seconds: of the best plan so far; None while no plan keeps the limits.
    """

    states: int
    elapsed: float
    share: float
    peak_bytes: int | None
    seconds: float | None
