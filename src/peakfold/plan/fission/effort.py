"""How long a plan with regions is searched."""

from dataclasses import dataclass, field

from peakfold.plan.schedule.deadline import Deadline


@dataclass(frozen=True, slots=True)
class Effort:
    """How long is searched.

    Attributes:
        time_budget: seconds for everything.
        iterations: proposals for each search of one graph, after which it stops; the result then depends
            on the seed only. None where time alone ends it.
        seed: of the random stream.
        deadline: of what this is a part of; after it, what is there is taken.
    """

    time_budget: float = 10.0
    iterations: int | None = None
    seed: int = 0
    deadline: Deadline = field(default_factory=Deadline)
