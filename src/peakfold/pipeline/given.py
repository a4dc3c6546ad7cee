"""A plan that is given: refused before anything is measured or run, where no form of the program has it."""

from collections.abc import Iterator

from peakfold.errors import PlanError
from peakfold.graph.rewrite.passes.once import foldings
from peakfold.ir.graph import Graph
from peakfold.ir.text import parse_plan, planned_for
from peakfold.ir.text.plan_print import summary
from peakfold.pipeline.moves import reached
from peakfold.pipeline.quicker import every
from peakfold.plan.fission.derive import Splitter


def require_plan(text: str, graph: Graph, *, is_rounded: bool = False) -> None:
    """Refuse the text of a plan that is for none of the graphs that rewrites make of a captured one.

    A plan that goes by names alone may be for any of them; which one it is run on is seen from costs, later.

    Args:
        text: what was written.
        graph: as captured.
        is_rounded: rewrites that round otherwise are made too; what they come to is seen from costs.

    Raises:
        PlanError: the text is no plan, is for another graph, or says what may not be.
    """
    digest = planned_for(text)
    if digest is None:
        fault = _fault_of_names(text, graph)
    elif (meant := next((one for one in _forms(graph) if one.digest == digest), None)) is not None:
        parse_plan(text, meant, Splitter())
        return
    else:
        fault = _fault(text, next((one for one in _direct(graph) if summary(one) in text), graph))
    if fault is not None and not is_rounded:
        raise fault


def _fault_of_names(text: str, graph: Graph) -> PlanError | None:
    """Return why no form of a graph has the nodes that a plan names: that of the form where most is right."""
    faults: list[PlanError] = []
    for form in _direct(graph):
        fault = _fault(text, form)
        if fault is None:
            return None
        faults.append(fault)
    return max(faults, key=_line)


def _fault(text: str, graph: Graph) -> PlanError | None:
    try:
        parse_plan(text, graph, Splitter())
    except PlanError as error:
        return error
    return None


def _line(fault: PlanError) -> int:
    """Return the line that a fault is in.

    Example:
        >>> _line(PlanError("plan", "this is no decision", "line 12, column 1: recompote x"))
        12
    """
    number = fault.where.removeprefix("line ").partition(",")[0]
    return int(number) if number.isdecimal() else 0


def _forms(graph: Graph) -> Iterator[Graph]:
    """Yield all graphs that rewrites make of one, the likely ones first."""
    for form in _direct(graph):
        yield form
        yield from foldings(form)
    for rewriter in every(graph):
        yield from (state.graph for state in reached(rewriter(graph)))


def _direct(graph: Graph) -> Iterator[Graph]:
    yield from (rewriter(graph) for rewriter in every(graph))
    yield graph
