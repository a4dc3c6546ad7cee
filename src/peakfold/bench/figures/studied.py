"""What every figure is made of: a workload captured and priced, and what is found and predicted for it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from peakfold.cost.costs import Costs
from peakfold.errors import PeakfoldError
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.options import from_environment
from peakfold.pipeline.before import timeline_before
from peakfold.pipeline.pricing import priced
from peakfold.pipeline.request import request
from peakfold.pipeline.searches import side_by_side
from peakfold.pipeline.task import Task
from peakfold.plan.literature import PLANNERS, Name, Subject
from peakfold.plan.schedule.found import Progress
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate
from peakfold.plan.search.joint import Joint
from peakfold.workloads import load_target

Row = dict[str, object]
Said = Callable[[str], None]
BUDGETS = 12
"""Budgets that each planner of the literature is given, for a curve."""


def nothing(note: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Asked:
    """One figure.

    Attributes:
        figure: its number in the paper.
        workloads: names.
        size: of the workloads.
        device: where they run: ``"cpu"``, whose operators are measured, or a simulated one.
        time_budget: seconds of each search.
        seed: of weights, batch and search.
        said: told what is going on, every few moments; a KeyboardInterrupt from it ends the search.
        known: rows that were made before, under the same settings.
    """

    figure: int
    workloads: tuple[str, ...]
    size: str
    device: str
    time_budget: float
    seed: int = 0
    said: Said = nothing
    known: tuple[Row, ...] = ()

    def has(self, **fields: object) -> bool:
        """Whether there is a row with these fields already.

        Example:
            >>> asked = Asked(9, ("bert",), "tiny", "cpu", 1.0, known=({"workload": "bert", "latency": 1.1},))
            >>> asked.has(workload="bert", latency=1.1), asked.has(workload="vit")
            (True, False)
        """
        return any(fields.items() <= row.items() for row in self.known if "error" not in row)

    def tell(self, what: str) -> Callable[[Progress], None]:
        """Return what a search tells its progress to.

        Args:
            what: the search is for.
        """
        return lambda state: self.said(f"{what}, {state.share:.0%} of the search")

    @property
    def workers(self) -> int:
        """Processes of each search."""
        return side_by_side(self.device.startswith("sim:"))


@dataclass(frozen=True)
class Studied:
    """A workload, captured and priced.

    Attributes:
        name: of the workload.
        graph: its program.
        costs: of its nodes.
        costs_of: gives those of the graphs that regions make.
        eager: predicted bytes of eager's peak.
        seconds: predicted time of the plan that splits and drops nothing.
    """

    name: str
    graph: Graph
    costs: Costs
    costs_of: Callable[[Graph], Costs]
    eager: int
    seconds: float

    def ratios(self, peak: float, seconds: float) -> Row:
        """Return a plan's bytes and seconds over eager's."""
        return {"memory_ratio": peak / self.eager, "latency_ratio": seconds / self.seconds}

    def search(self, asked: Asked, memory: float | None = None, latency: float | None = None) -> Joint:
        """Return a search for a limit.

        Args:
            asked: time and seed.
            memory: most bytes, over eager's.
            latency: most seconds, over eager's.
        """
        goal = Goal(
            None if memory is None else int(memory * self.eager),
            None if latency is None else latency * self.seconds,
        )
        limits = ("memory", memory), ("latency", latency)
        what = " ".join(f"{name} {limit:g}" for name, limit in limits if limit is not None)
        return Joint(
            self.graph,
            self.costs_of,
            goal,
            asked.time_budget,
            seed=asked.seed,
            progress=asked.tell(what),
            workers=asked.workers,
        )

    def peers(self, asked: Asked) -> Iterator[tuple[Name, float, float]]:
        """Yield what the planners of the literature come to for even budgets: name, bytes, seconds.

        A planner that did not keep a budget, or whose time is spent, is not asked for lower ones.

        Args:
            asked: the time of each planner.
        """
        subject = Subject.of(self.graph, self.costs)
        resident = subject.tables.resident
        budgets = np.linspace(self.eager, resident, BUDGETS + 1)[1:-1].tolist()
        for name, planner in PLANNERS.items():
            began = time.process_time()
            for budget in budgets:
                if time.process_time() - began > asked.time_budget:
                    break
                asked.said(f"{name} within {budget / self.eager:.2f} of the bytes")
                try:
                    line = planner(subject, int(budget)).timeline
                except PeakfoldError:
                    continue
                yield name, line.peak, line.seconds
                if line.peak > budget:
                    break


def studied(name: str, asked: Asked) -> Studied:
    """Capture and price a workload.

    Args:
        name: of the workload.
        asked: its size, the device and the seed.
    """
    asked.said("capture")
    simulated = asked.device.startswith("sim:")
    target = load_target(name, seed=asked.seed, size=asked.size, device="meta" if simulated else None)
    task = Task.of(target)
    wanted = request(
        None, None, asked.time_budget, None, asked.seed, "eager", False, device=asked.device, offload="none"
    )
    graph, options = task.capture().graph, from_environment()

    def costs_of(one: Graph) -> Costs:
        return priced(one, task, wanted, options, lambda done, total: None)[0]

    costs = costs_of(graph)
    plain = simulate(graph, costs, lower(graph, Plan(graph.digest)))
    eager = timeline_before(task, graph, costs).peak_bytes
    return Studied(name, graph, costs, costs_of, eager, plain.seconds)
