"""What the search may split: regions of the fission tree, and the widest one along each great axis."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from peakfold.cost.costs import Costs
from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Plan, Run
from peakfold.plan.fission.assign import Refusal, assign
from peakfold.plan.fission.axes import Axes, anchor_of
from peakfold.plan.fission.candidates import LEVELS, Candidate, candidates, hottest
from peakfold.plan.fission.dims import Component
from peakfold.plan.fission.finer import times
from peakfold.plan.fission.grow import Ground
from peakfold.plan.fission.layered import layered
from peakfold.plan.fission.reading import Reading
from peakfold.plan.fission.small import outside
from peakfold.plan.fission.split import within
from peakfold.plan.fission.stages import stages
from peakfold.plan.fission.tree import Tree, region_of, rest_of
from peakfold.plan.fission.turn import turned
from peakfold.plan.fission.widest import widest
from peakfold.plan.schedule.deadline import Deadline
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate

WIDEST = 2
"""Axes, those of most bytes, along which everything that can be is split."""
MOST = 24
"""Candidates of the tree, those layer by layer apart."""
IN_LAYERS = 4
"""Of these, pairs of loops in all layers that are alike."""
ALIKE = 0.9
"""Share of runs of either candidate that both have, from which on they are alike."""
FAR = frozenset({"widest", "stages", "alike", "layers"})
"""Sources of candidates that reach furthest in one move."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the tree comes from; others than the usual ones are for ablations.

    Attributes:
        levels: bands of scores in which dominators are looked for (algorithm 1's L).
        tree: whether regions are looked for at all, beside the widest ones.
        hot: whether they are looked for around what lives at the peak alone; else around everything.
        layers: whether the program is split layer by layer too, along the axes of most bytes, and around the
            turn from forward to backward in finer parts.
    """

    levels: int = LEVELS
    tree: bool = True
    hot: bool = True
    layers: bool = False


def tree_of(
    graph: Graph,
    costs: Costs,
    roots: Roots | None = None,
    axes: Axes | None = None,
    deadline: Deadline | None = None,
) -> Tree:
    """Return the candidates for a prepared graph, by what lives at its peak, far reaching ones first.

    After the deadline those that are found by then are taken.
    """
    roots, axes = roots or Roots(), axes or Axes()
    hot = _hot(graph, costs) if roots.hot else set(graph.storages())
    reading, along = axes.reading(graph), axes.of(graph)
    found = [*_widest(reading, hot, along), *_in_stages(reading, hot, along)]
    layers: list[Candidate] = []
    if roots.layers:
        ground = Ground(reading)
        layers += [one for axis in hottest(graph, hot, along)[:WIDEST] for one in layered(ground, hot, axis)]
        layers += [one for axis in hottest(graph, hot, along)[:1] for one in turned(ground, hot, axis)]
    if roots.tree:
        grown = candidates(graph, hot, along, levels=roots.levels, reading=reading, deadline=deadline)
        alike = [one for one in grown if one.source == "alike"][:IN_LAYERS]
        found += [one for one in grown if one.source != "alike"][:1] + alike
        found += [one for one in grown if one.source != "alike"][1:]
    return Tree(tuple(_without_small(graph, one, axes) for one in (*_distinct(found), *layers)))


def _without_small(graph: Graph, candidate: Candidate, axes: Axes) -> Candidate:
    """Leave small nodes at the border outside, where it is a candidate without them too."""
    try:
        states = [
            axes(graph, region, frozenset(within(graph, region.runs))).states
            for region in (region_of(candidate, 2), *rest_of(candidate, 2))
        ]
        loops = [candidate.runs, *(piece.runs for piece in candidate.rest)]
        left = outside(graph, list(zip(loops, states, strict=True)))
        less = replace(candidate, outside=left)
        for region in (region_of(less, 2), *rest_of(less, 2)) if left else ():
            axes(graph, region, frozenset(within(graph, region.runs)))
    except PlanError:
        return candidate
    return less


def _distinct(found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Leave out what splits nearly the same as one before it, into as many, in as many loops."""
    kept: list[tuple[Candidate, frozenset[Run]]] = []
    for one in found:
        runs = frozenset(one.every)
        kind = (one.axis, one.length, len(one.rest))
        others = (own for other, own in kept if (other.axis, other.length, len(other.rest)) == kind)
        if all(len(runs & own) < ALIKE * len(runs | own) for own in others):
            kept.append((one, runs))
    return tuple(one for one, _ in kept[:MOST])


def _hot(graph: Graph, costs: Costs) -> set[Value]:
    """Storages that live at the peak of the plan that drops nothing."""
    timeline = simulate(graph, costs, lower(graph, Plan(graph.digest)))
    return {span.buffer.value for row in timeline.hotspots[:1] for span in timeline.alive(row)}


def _widest(reading: Reading, hot: set[Value], axes: tuple[Component, ...]) -> Iterator[Candidate]:
    graph = reading.graph
    for axis in hottest(graph, hot, axes)[:WIDEST]:
        runs = widest(graph, axis, reading=reading)
        inside = {run.node for run in runs}
        members = [vertex for vertex in axis.members if vertex[0].node in inside]
        states = assign(graph, runs, axis, None, reading)
        if not members or isinstance(states, Refusal):
            continue
        length = axis.length * times(within(graph, runs), states, reading, axis)
        anchor = max(members, key=lambda vertex: (graph.nbytes(vertex[0]), -vertex[0].node))
        saved = sum(graph.nbytes(v) // 2 for v in {graph.storage(m[0]) for m in members} & hot)
        yield Candidate(axis.name, length, runs, anchor_of(anchor), saved, 0, "widest")


def _in_stages(reading: Reading, hot: set[Value], axes: tuple[Component, ...]) -> Iterator[Candidate]:
    """One region after the other along the axis of most bytes, where one alone does not reach.

    Along an axis that a softmax runs over, scores that live at the peak may be made in each of them again.
    """
    graph = reading.graph
    wanted = [(axis, False) for axis in hottest(graph, hot, axes)[:1]]
    wanted += [(axis, True) for axis in axes if axis.length > 1 and _is_summed(graph, hot, axis)]
    for axis, anew in wanted:
        pieces = stages(graph, axis, anew=anew, reading=reading)
        if len(pieces) < 2:
            continue
        inside = {run.node for piece in pieces for run in piece.runs}
        storages = {graph.storage(value) for value, _ in axis.members if value.node in inside}
        saved = sum(graph.nbytes(value) // 2 for value in storages & hot)
        first, *rest = pieces
        yield Candidate(axis.name, axis.length, first.runs, first.anchor, saved, 0, "stages", tuple(rest))


def _is_summed(graph: Graph, hot: set[Value], axis: Component) -> bool:
    """Whether a softmax of hot scores, which was taken apart, runs over an axis."""
    totals = [node for node in graph.nodes if node.op.packet == "logsumexp"]
    if not totals:
        return False
    along = {value for value, _ in axis.members if graph.storage(value) in hot}
    return any(node.inputs[0] in along and Value(node.id) not in along for node in totals)
