"""What the planners of the literature are given, and what they give back."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan, Schedule
from peakfold.plan.schedule.arrays import Tables, tabulate
from peakfold.plan.schedule.encode import plan_of
from peakfold.plan.schedule.frame import HOLD, KEEP, Frame, frame
from peakfold.plan.schedule.lower import stored
from peakfold.plan.schedule.sequence import sequence, with_updates
from peakfold.plan.schedule.simulate import simulate_tables
from peakfold.plan.schedule.timeline import Timeline

Name = Literal["chen", "xla", "dtr", "rotor"]


@dataclass(frozen=True)
class Baseline:
    """What a planner of the literature comes to.

    Attributes:
        planner: its name.
        schedule: each step.
        timeline: the same, simulated: peak in bytes, seconds.
        plan: the decisions, where they can be said as ours; None for a free sequence of runs.
    """

    planner: Name
    schedule: Schedule
    timeline: Timeline
    plan: Plan | None


@dataclass(frozen=True)
class Subject:
    """A program in its own order, as every one of these planners sees it.

    Attributes:
        frame: the graph in arrays.
        costs: seconds and hidden bytes by node id.
    """

    frame: Frame
    costs: Costs

    @classmethod
    def of(cls, graph: Graph, costs: Costs) -> "Subject":
        """Return the subject of a graph."""
        return cls(frame(tabulate(graph, costs)), costs)

    @property
    def tables(self) -> Tables:
        """The graph in arrays."""
        return self.frame.tables

    @cached_property
    def steps(self) -> list[int]:
        """Steps but the updates, in program order."""
        return [int(step) for step in self.frame.base]

    @cached_property
    def needs(self) -> list[list[int]]:
        """Storages that each step reads and another one makes."""
        begin, need = self.frame.need_begin.tolist(), self.frame.need.tolist()
        return [need[begin[s] : begin[s + 1]] for s in range(self.tables.steps)]

    @cached_property
    def makes(self) -> list[list[int]]:
        """Storages that each step makes, numbers apart."""
        tables = self.tables
        begin, outputs = tables.output_begin.tolist(), tables.outputs.tolist()
        number = tables.host_number.tolist()
        return [[v for v in outputs[begin[s] : begin[s + 1]] if not number[v]] for s in range(tables.steps)]

    @cached_property
    def readers(self) -> list[list[int]]:
        """Places in the base order at which each storage is read."""
        found: list[list[int]] = [[] for _ in self.tables.storages]
        for place, step in enumerate(self.steps):
            for v in self.needs[step]:
                found[v].append(place)
        return found

    @cached_property
    def turn(self) -> int:
        """Place of the first step of the backward pass; the number of steps where there is none."""
        node = self.tables.graph.node
        nodes = self.tables.nodes
        phases = [node[int(nodes[step])].origin.phase for step in self.steps]
        return phases.index("backward") if "backward" in phases else len(phases)

    def from_modes(self, planner: Name, modes: Sequence[int]) -> Baseline:
        """Return what decisions come to."""
        return self._baseline(planner, sequence(self.frame, modes), plan_of(self.frame, modes))

    def from_runs(self, planner: Name, runs: Sequence[int]) -> Baseline:
        """Return what a sequence of runs of base steps comes to, the updates put in."""
        late = [int(s) for s in sorted(self.frame.late.nonzero()[0], key=lambda s: int(self.frame.rank[s]))]
        return self._baseline(planner, list(with_updates(self.frame, runs, late)), None)

    def _baseline(self, planner: Name, runs: Sequence[int], plan: Plan | None) -> Baseline:
        schedule = stored(self.tables, runs, reuse=True)
        return Baseline(planner, schedule, simulate_tables(self.tables, schedule, self.costs.link), plan)

    def kept(self) -> list[int]:
        """Return the modes of the plan that drops nothing."""
        return [KEEP] * (self.frame.gaps + self.tables.steps)

    def dropped(self, keep: Iterable[int]) -> list[int]:
        """Return modes by which what the forward pass makes is dropped at its end.

        Args:
            keep: storages that stay.
        """
        modes, stays = self.kept(), set(keep)
        for place, step in enumerate(self.steps[: self.turn]):
            if not self.frame.droppable[step] or stays.intersection(self.makes[step]):
                continue
            for v in self.makes[step]:
                again = [user for user in self.readers[v] if user >= self.turn]
                if again and again[0] - place > 1:
                    modes[self.frame.gap_of[step, self.steps[again[0]]]] = HOLD
        return modes


Planner = Callable[[Subject, int], Baseline]
"""Takes a subject and a budget in bytes; gives what it comes to, within the budget or not."""


def best(found: Iterable[Baseline], memory: int) -> Baseline:
    """Return the fastest that keeps a budget, or else the one of the lowest peak."""

    def rank(one: Baseline) -> tuple[bool, float, float]:
        peak, seconds = one.timeline.peak, one.timeline.seconds
        return (True, peak, seconds) if peak > memory else (False, seconds, peak)

    return min(found, key=rank)
