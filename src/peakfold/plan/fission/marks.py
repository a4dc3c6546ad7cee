"""Where the marks of an emitted program stand: one behind each step, of the program and of its parts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from peakfold.ir.plan import Compute, Step
from peakfold.plan.fission.program import Nest


@dataclass(frozen=True, slots=True)
class Marked:
    """What runs from one mark of an emitted program to the next.

    Attributes:
        nest: the graph, of the program or of a part.
        step: of its schedule.
        of: all of the step; or what a region fills, taken before its first part; or what follows its last.
    """

    nest: Nest
    step: Step
    of: Literal["step", "filled", "over"] = "step"


def marked(nest: Nest) -> Iterator[Marked]:
    """Yield what ends at each mark of a program that is emitted with marks, in the order of a run."""
    for step in nest.schedule.steps:
        if not isinstance(step, Compute) or step.run.node not in nest.loops:
            yield Marked(nest, step)
            continue
        repeat = nest.loops[step.run.node]
        yield Marked(nest, step, "filled")
        for _ in repeat.body.starts:
            yield from marked(repeat.nest)
        yield Marked(nest, step, "over")
