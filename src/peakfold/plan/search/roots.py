"""What the search may split: regions of the fission tree, and the widest one along each great axis."""

from collections.abc import Iterator

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Plan
from peakfold.plan.fission.assign import Refusal, assign
from peakfold.plan.fission.axes import anchor_of
from peakfold.plan.fission.candidates import Candidate, candidates, hottest
from peakfold.plan.fission.dims import Component, components
from peakfold.plan.fission.stages import stages
from peakfold.plan.fission.tree import Tree
from peakfold.plan.fission.widest import widest
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate

WIDEST = 2
"""Axes, those of most bytes, along which everything that can be is split."""
MOST = 24
"""Candidates of the tree, the widest ones apart."""
ALIKE = 4
"""Of these, pairs of loops in all layers that are alike."""
FAR = frozenset({"widest", "stages", "alike"})
"""Sources of candidates that reach furthest in one move."""


def tree_of(graph: Graph, costs: Costs) -> Tree:
    """Return the candidates for a prepared graph, by what lives at its peak, far reaching ones first."""
    timeline = simulate(graph, costs, lower(graph, Plan(graph.digest)))
    rows = timeline.hotspots[:1]
    hot = {span.buffer.value for row in rows for span in timeline.alive(row)}
    axes = components(graph)
    found = {one.every: one for one in (*_widest(graph, hot, axes), *_in_stages(graph, hot, axes))}
    grown = candidates(graph, hot, axes)
    alike = [one for one in grown if one.source == "alike"][:ALIKE]
    others = [one for one in grown if one.source != "alike"][: MOST - len(alike)]
    for one in (*others[:1], *alike, *others[1:]):
        found.setdefault(one.every, one)
    return Tree(tuple(found.values()))


def _widest(graph: Graph, hot: set[Value], axes: tuple[Component, ...]) -> Iterator[Candidate]:
    for axis in hottest(graph, hot, axes)[:WIDEST]:
        runs = widest(graph, axis)
        inside = {run.node for run in runs}
        members = [vertex for vertex in axis.members if vertex[0].node in inside]
        if not members or isinstance(assign(graph, runs, axis), Refusal):
            continue
        anchor = max(members, key=lambda vertex: (graph.nbytes(vertex[0]), -vertex[0].node))
        saved = sum(graph.nbytes(v) // 2 for v in {graph.storage(m[0]) for m in members} & hot)
        yield Candidate(axis.name, axis.length, runs, anchor_of(anchor), saved, 0, "widest")


def _in_stages(graph: Graph, hot: set[Value], axes: tuple[Component, ...]) -> Iterator[Candidate]:
    """One region after the other along the axis of most bytes, where one alone does not reach."""
    for axis in hottest(graph, hot, axes)[:1]:
        pieces = stages(graph, axis)
        if len(pieces) < 2:
            continue
        inside = {run.node for piece in pieces for run in piece.runs}
        storages = {graph.storage(value) for value, _ in axis.members if value.node in inside}
        saved = sum(graph.nbytes(value) // 2 for value in storages & hot)
        first, *rest = pieces
        yield Candidate(axis.name, axis.length, first.runs, first.anchor, saved, 0, "stages", tuple(rest))
