"""From a captured program to a planned and emitted one: the stages that run nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from peakfold.bridge.capture import Captured
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.codegen.header import Header
from peakfold.cost.costs import Costs
from peakfold.ir.plan import Plan, Schedule
from peakfold.plan.check import require_legal
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate
from peakfold.plan.schedule.timeline import Timeline


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
    """

    captured: Captured
    costs: Costs
    plan: Plan
    schedule: Schedule
    timeline: Timeline
    source: str


def emit_plan(
    captured: Captured,
    plan: Plan,
    costs: Costs,
    name: str = "",
    versions: Mapping[str, str] | None = None,
    budget: int | None = None,
) -> Program:
    """Lower, check, simulate and emit a plan.

    Args:
        captured: the program.
        plan: its decisions.
        costs: of its nodes.
        name: of the model, for the head of the file.
        versions: of what makes the file, for its head.
        budget: in bytes, for its head.

    Raises:
        PlanError: the plan is not legal for the graph.
    """
    graph = captured.graph
    schedule = lower(graph, plan)
    require_legal(graph, schedule)
    timeline = simulate(graph, costs, schedule)
    header = Header(
        model=name,
        budget_bytes=budget,
        predicted_peak_bytes=timeline.peak,
        predicted_seconds=timeline.seconds,
        versions=versions or {},
    )
    return Program(captured, costs, plan, schedule, timeline, emit(graph, schedule, timeline, header))
