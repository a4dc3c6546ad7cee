"""What is known at the end, as a Report."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from peakfold.bridge.capture import Captured
from peakfold.bridge.runtime.arena import Use
from peakfold.cost.costs import Costs
from peakfold.ir.text import print_graph, print_plan
from peakfold.ops.known import barriers
from peakfold.pipeline.plan_cache import Kept
from peakfold.pipeline.program import Program
from peakfold.pipeline.prove import Figures
from peakfold.pipeline.request import Request
from peakfold.plan.fission.derive import Splitter
from peakfold.plan.memory.host import moves
from peakfold.plan.memory.layout import Held
from peakfold.plan.schedule.found import Point
from peakfold.report.arena import Arena, arena_of
from peakfold.report.decisions import decisions_of
from peakfold.report.explain import live_at_peak
from peakfold.report.model import (
    Eager,
    Equality,
    GraphSize,
    Optimized,
    Report,
    SearchSummary,
    StageSeconds,
    Texts,
    Timeline,
    Timelines,
)
from peakfold.report.spans import timeline_of


@dataclass(frozen=True)
class Facts:
    """What is known before a plan is.

    Attributes:
        asked: the request.
        captured: the program.
        costs: of its nodes.
        before: eager's memory, predicted.
        eager: eager's figures so far.
        budget: in bytes; None where memory is free.
        resident: bytes of the caller's own tensors, apart from those that the arena holds.
        held: what the arena holds of them.
        known: a plan of the program that was found when its rewrites were chosen.
        own_seconds: of the program's operators before rewrites for memory; None where none was made.
    """

    asked: Request
    captured: Captured
    costs: Costs
    before: Timeline
    eager: Eager
    budget: int | None
    resident: int = 0
    held: tuple[Held, ...] = ()
    known: Point | None = None
    own_seconds: float | None = None

    @property
    def in_arena(self) -> bool:
        """Whether the budget is for an arena."""
        return self.asked.memory is not None and self.asked.memory.arena

    @property
    def arena_budget(self) -> int:
        """Bytes that the arena may have: the budget without the caller's own tensors."""
        return (self.budget or 0) - self.resident


def report_of(
    facts: Facts,
    program: Program,
    kept: Kept,
    *,
    figures: Figures,
    equality: Equality,
    plain_over_eager: float | None,
    seconds: StageSeconds,
    notes: tuple[str, ...],
    environment: Mapping[str, str],
    use: Use | None = None,
) -> Report:
    """Return the report of one optimization.

    Args:
        facts: what was known before the plan.
        program: the plan and all that follows from it.
        kept: what the search said.
        figures: what was measured.
        equality: the proof.
        plain_over_eager: measured seconds of the program without recomputation over eager's; corrects
            the predicted ratio. None where it was not measured.
        seconds: of the stages.
        notes: what a reader must know.
        environment: versions and machine.
        use: what a step asked of its arena, where it ran in one.
    """
    graph, runs = facts.captured.graph, program.nest
    return Report(
        target=facts.asked.name,
        limits=replace(facts.asked.limits, memory_bytes=facts.budget),
        device=facts.asked.device,
        eager=facts.eager,
        optimized=Optimized(
            predicted_peak_bytes=program.peak,
            peak_bytes=figures.peak_bytes,
            host_bytes=program.host_bytes,
            cpu_seconds=figures.cpu_seconds,
            predicted_latency_ratio=_predicted_ratio(facts, program, plain_over_eager),
        ),
        equal=equality,
        seconds=seconds,
        search=SearchSummary(kept.stop_reason, kept.states),
        lower_bound_bytes=kept.lower_bound_bytes or None,
        graph=GraphSize(len(graph.nodes), sum(1 for _ in graph.storages())),
        timelines=Timelines(
            before=facts.before,
            after=timeline_of(runs.graph, runs.schedule, runs.costs),
        ),
        live_at_peak=live_at_peak(runs.graph, runs.schedule, runs.costs),
        decisions=decisions_of(runs.graph, kept.plan, runs.costs),
        barriers=barriers(graph),
        notes=notes,
        environment=environment,
        texts=Texts(print_plan(kept.plan, graph, splitter=Splitter()), program.source, print_graph(graph)),
        arena=_arena(facts, program, use),
    )


def _arena(facts: Facts, program: Program, use: Use | None) -> Arena | None:
    if program.layout is None:
        return None
    found = arena_of(
        program.layout,
        budget=facts.arena_budget,
        host_bytes=program.host_bytes,
        moves=moves(program.nest.graph, program.schedule),
        device=facts.asked.device,
        runs=program.in_arena,
    )
    if use is None:
        return found
    return replace(
        found,
        served=use.served,
        ordinary=use.ordinary,
        unplanned=use.named,
        elsewhere=use.elsewhere,
        copies=use.copies,
    )


def _predicted_ratio(facts: Facts, program: Program, plain_over_eager: float | None) -> float | None:
    """Return the predicted ratio to eager's time; eager's own operators stand for eager."""
    graph, once = facts.captured.graph, facts.own_seconds
    if once is None:
        once = sum(facts.costs.seconds.get(node.id, 0.0) for node in graph.nodes)
    if not once:
        return None
    return program.timeline.seconds / once * (plain_over_eager or 1.0)
