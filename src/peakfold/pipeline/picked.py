"""Which points of a front are run: some spread over it, and the lowest within each limit of the time.

Predicted times are off, so the lowest point within a limit is not known before programs ran. A few are, with
clocks; the times of the others follow from what operators took in them, and a bisection of the front finds
the points on both sides of each limit. These are run too, and what they say of the others is asked once more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from peakfold.pipeline import prove
from peakfold.pipeline.in_place import Shares, Subject, clocks_in, foretelling
from peakfold.pipeline.program import Program
from peakfold.pipeline.task import Task

LIMITS = (1.05, 1.10, 1.35)
"""Times, over eager's, within which the lowest points are run."""
MARGINS = (0.99, 0.96)
"""Shares of a limit that a point's corrected time keeps to: predictions are off after correction too."""
ROUNDS = 3
"""Rounds in which the first programs are timed."""


@dataclass(frozen=True)
class Look:
    """A first look at some programs, from which the times of others follow.

    Attributes:
        seen: what the steps of each program took; empty where programs cannot be run with clocks.
        seconds: what each took without clocks, ``"eager"`` too.
        usual: what the program that drops nothing took over its prediction.
    """

    seen: Mapping[str, Shares]
    seconds: Mapping[str, float]
    usual: float

    @staticmethod
    def at(task: Task, programs: Mapping[str, Subject], plain: str) -> "Look":
        """Run programs, without clocks and with.

        Args:
            task: whose eager step is timed with them.
            programs: by name.
            plain: name of the program that drops nothing.
        """
        taken = prove.seconds(task, {name: program for name, (_, program) in programs.items()}, rounds=ROUNDS)
        return Look(clocks_in(programs), taken, taken[plain] / programs[plain][1].timeline.seconds)

    def beside(self, other: "Look") -> "Look":
        """Return what both say; times of the other one are taken as shares of eager's in its own run."""
        scale = self.seconds["eager"] / other.seconds["eager"]
        theirs = {name: scale * seconds for name, seconds in other.seconds.items()}
        return replace(self, seen={**other.seen, **self.seen}, seconds={**theirs, **self.seconds})

    def ratios(self) -> Callable[[Program], float]:
        """Return what foretells the time of a program, over eager's."""
        eager = self.seconds["eager"]
        seconds = foretelling([(of, self.seconds[name]) for name, of in self.seen.items()], self.usual)
        return lambda program: seconds(program) / eager


def lowest_within(count: int, ratio: Callable[[int], float], limits: Sequence[float]) -> Iterator[int]:
    """Yield, for each limit that can be kept, the last point of a front that keeps it.

    Args:
        count: points; the times of later ones are longer.
        ratio: the time of a point.
        limits: of the time.

    Example:
        >>> list(lowest_within(4, [0.9, 1.0, 1.2, 1.3].__getitem__, [0.8, 1.1, 2.0]))
        [1, 3]
    """
    for limit in limits:
        low, high = -1, count - 1
        while low < high:
            middle = (low + high + 1) // 2
            if ratio(middle) <= limit:
                low = middle
            else:
                high = middle - 1
        if low >= 0:
            yield low
