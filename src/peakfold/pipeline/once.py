"""What reads no input is computed once and kept: where neither bytes nor seconds are more, or it is asked."""

from dataclasses import replace

from peakfold.bridge.capture import Captured
from peakfold.bridge.runtime.once import with_graph
from peakfold.cost.costs import Costs
from peakfold.graph.rewrite.passes.once import ComputedOnce, foldings
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.ir.text import print_graph
from peakfold.pipeline.program import Program
from peakfold.pipeline.request import Request
from peakfold.pipeline.run import Run

WHY_NOT = "what no input has a part in is computed in every run: kept, no program within the budget was found"


def computed_once(
    run: Run, captured: Captured, costs: Costs, plain: Program
) -> tuple[Captured, Costs, Program]:
    """Return the program with what reads no input kept between runs, where that pays; the given one else.

    What is kept lives all the time, and no plan can drop it: where bytes are limited, or the least are
    searched, it is computed in every run, unless it is asked to be kept.
    """
    given, asked = (captured, costs, plain), run.asked
    with run.stages("rewrite"):
        graph = _folded(asked, captured.graph)
    if graph is None or graph.digest == captured.graph.digest:
        return given
    there = with_graph(captured, graph)
    found = run.program(there, run.costs(graph), Plan(graph.digest), None)
    is_smaller = asked.keep_constants or found.timeline.peak <= plain.timeline.peak
    is_quicker = found.timeline.seconds <= plain.timeline.seconds
    if asked.plan is None and not (is_smaller and is_quicker):
        return given
    names = tuple(one.name for one in graph.inputs if one.id not in captured.graph.input)
    run.task = replace(run.task, once=names)
    run.stages.dump("once.txt", print_graph(graph))
    kept = f"{len(names)} constant{'s' * (len(names) > 1)} computed once: {', '.join(names)}"
    run.note(f"{kept}; {len(captured.graph.nodes)} operators before, {len(graph.nodes)} after")
    return there, found.costs, found


def _folded(asked: Request, graph: Graph) -> Graph | None:
    """Return the graph that is to be tried; that of a given plan."""
    if asked.plan is not None:
        return None if graph.digest in asked.plan else _of_plan(asked.plan, graph)
    is_limited = asked.memory is not None or asked.latency is not None
    if asked.keep_constants or (asked.rewrite and not is_limited):
        return ComputedOnce(asked.keep_constants)(graph).graph
    return None


def _of_plan(plan: str, graph: Graph) -> Graph | None:
    return next((one for one in foldings(graph) if one.digest in plan), None)
