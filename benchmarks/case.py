"""What the figures share: a workload captured and costed, and its programs as steps."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from peakfold.bridge.capture import Captured
from peakfold.bridge.runtime.profile import machine, profile
from peakfold.cost.cache import FILE_NAME, CostCache
from peakfold.cost.costs import Costs
from peakfold.ir.plan import Plan
from peakfold.options import from_environment, quiet_profiler
from peakfold.pipeline.machine import environment
from peakfold.pipeline.program import Program, emit_plan
from peakfold.pipeline.task import Task
from peakfold.workloads import build

Row = dict[str, object]
THREADS = 1


@dataclass(frozen=True)
class Case:
    """A workload on the CPU, captured, with measured costs.

    Attributes:
        task: the step.
        captured: its program.
        costs: of its nodes.
        plain: the program without recomputation.
    """

    task: Task
    captured: Captured
    costs: Costs
    plain: Program = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plain", self.program(Plan(self.captured.graph.digest)))

    def program(self, plan: Plan) -> Program:
        """Return the program of a plan."""
        return emit_plan(self.captured, plan, self.costs)

    @property
    def untouched(self) -> Program:
        """The program in its own order: no early update, no reuse, no recomputation."""
        return self.program(Plan(self.captured.graph.digest, (), "last", False))


def case_of(task: Task) -> Case:
    """Capture a task and measure its operators."""
    captured = task.capture()
    cache = CostCache(from_environment().cache / FILE_NAME)
    return Case(task, captured, profile(captured.graph, cache, THREADS))


def load(workload: str, size: str = "cpu", **options: object) -> Case:
    """Return a workload by its name, see `peakfold.workloads.build` for the options."""
    return case_of(Task.of(build(workload, size, **options)))  # type: ignore[arg-type]


def quiet() -> None:
    """Set torch up as every figure has it: one thread."""
    quiet_profiler()
    torch.set_num_threads(THREADS)


def here() -> dict[str, str]:
    """Return versions and machine, as the JSON of a figure has them."""
    return dict(environment(0)) | {"cpu": machine(THREADS).cpu}


Figure = Callable[[str], list[Row]]
"""Makes the rows of one workload."""
