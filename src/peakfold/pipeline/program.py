"""From a captured program to a planned and emitted one: the stages that run nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from peakfold.bridge.capture import Captured
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.codegen.header import Header
from peakfold.cost.costs import Costs
from peakfold.ir.plan import Plan, Schedule
from peakfold.plan.check import require_legal
from peakfold.plan.fission.derive import derived
from peakfold.plan.fission.program import CostsOf, Nest, outer_plan, planned
from peakfold.plan.memory.host import host_layout
from peakfold.plan.memory.layout import Layout
from peakfold.plan.schedule.timeline import Timeline

TORCH, ARENA = "torch", "arena"


@dataclass(frozen=True)
class Program:
    """A captured program with its costs, its plan and all that follows from them.

    Attributes:
        captured: the program.
        costs: of its nodes.
        plan: the decisions.
        schedule: what they come to.
        timeline: the simulated schedule.
        source: the emitted file.
        nest: the graph that runs, in which a region is one node, and all that is planned inside regions.
        folder: where what is offloaded waits in a file; None for memory of the host.
        layout: where its allocations lie in one arena; None where none was asked for.
        in_arena: it runs there; else the layout is a prediction.
        header: figures for the head of the file.
    """

    captured: Captured
    costs: Costs
    plan: Plan
    schedule: Schedule
    timeline: Timeline
    source: str
    nest: Nest
    folder: Path | None = None
    layout: Layout | None = None
    in_arena: bool = False
    header: Header = field(default_factory=Header)

    def running_in(self, layout: Layout) -> "Program":
        """Return it in an arena; one with control flow says there which way it goes."""
        source = self.source
        if any(part.bodies for part in self.nest.nests()):
            source = self.emitted(told=True)
        return replace(self, layout=layout, in_arena=True, source=source)

    def planned_only(self) -> "Program":
        """Return it with torch's allocator."""
        return replace(self, layout=None, in_arena=False, source=self.emitted())

    def emitted(self, *, marks: bool = False, told: bool = False) -> str:
        """Return its file, as `emit` writes it."""
        nest = self.nest
        return emit(
            nest.graph,
            nest.schedule,
            nest.timeline,
            self.header,
            marks=marks,
            loops=nest.loops,
            folder=self.folder,
            bodies=nest.bodies,
            told=told,
        )

    @property
    def peak(self) -> int:
        """The most bytes at once: the caller's own tensors with what lives beside them, or the arena."""
        if self.layout is None:
            return self.timeline.peak
        return self.timeline.resident - self.layout.held_bytes + self.layout.arena

    @property
    def allocator(self) -> str:
        """What serves its allocations: `TORCH`, or `ARENA`."""
        return ARENA if self.in_arena else TORCH

    @property
    def host_bytes(self) -> int:
        """Bytes on the host for what waits there."""
        return host_layout(self.nest.graph, self.schedule).nbytes


def emit_plan(
    captured: Captured,
    plan: Plan,
    costs: Costs,
    name: str = "",
    versions: Mapping[str, str] | None = None,
    budget: int | None = None,
    costs_of: CostsOf | None = None,
    folder: Path | None = None,
) -> Program:
    """Split, lower, check, simulate and emit a plan.

    Args:
        captured: the program.
        plan: its decisions.
        costs: of its nodes.
        name: of the model, for the head of the file.
        versions: of what makes the file, for its head.
        budget: in bytes, for its head.
        costs_of: gives the costs of the graphs that regions make; without it those of the program's nodes
            stand for those of their parts.
        folder: where what is offloaded waits in a file; None for memory of the host.

    Raises:
        PlanError: the plan is not legal for the graph.
    """
    graph = captured.graph
    found = derived(graph, plan)
    of = costs_of or (lambda _: costs)
    nest = planned(found, outer_plan(plan, found), lambda one: costs if one is graph else of(one))
    for part in nest.nests():
        require_legal(part.graph, part.schedule)
    header = Header(
        model=name,
        budget_bytes=budget,
        predicted_peak_bytes=nest.timeline.peak,
        predicted_seconds=nest.timeline.seconds,
        versions=versions or {},
    )
    made = Program(captured, costs, plan, nest.schedule, nest.timeline, "", nest, folder, header=header)
    return replace(made, source=made.emitted())
