"""A state of the fission tree as regions of a plan, nested ones inside the plans of the outer ones."""

from dataclasses import replace

from peakfold.errors import PlanError
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Anchor, Plan, Region
from peakfold.plan.fission.axes import Axes
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.derived import Body
from peakfold.plan.fission.split import within
from peakfold.plan.fission.states import Factor
from peakfold.plan.fission.tree import Parts, Tree, region_of, rest_of


def regions_of(graph: Graph, tree: Tree, parts: Parts, axes: Axes | None = None) -> tuple[Region, ...]:
    """Return the regions that a state of the tree means.

    Args:
        graph: the prepared program that the tree is of.
        tree: the candidates.
        parts: the state.
        axes: knows the axes of graphs that were split before.

    Raises:
        PlanError: a nested region is none in a part of the outer one.
    """
    known = axes or Axes()
    return tuple(
        region
        for index in tree.outermost(parts)
        for region in (
            _region(graph, tree, parts, index, known),
            *rest_of(tree.candidates[index], parts[index]),
        )
    )


def _region(graph: Graph, tree: Tree, parts: Parts, index: int, axes: Axes) -> Region:
    outer = region_of(tree.candidates[index], parts[index])
    inner = tree.inside(parts, index)
    if all(count == 1 for count in inner):
        return outer
    (body,) = derive(graph, (outer,), axes).bodies.values()
    regions = tuple(
        _in_part(body, _region_in(body, tree, inner, k, axes), graph, axes) for k in tree.outermost(inner)
    )
    return replace(outer, plan=Plan(body.part.digest, regions=regions))


def _region_in(body: Body, tree: Tree, parts: Parts, index: int, axes: Axes) -> Region:
    """A nested region; what is nested in it again is of the part of a part."""
    deeper = tree.inside(parts, index)
    if any(count > 1 for count in deeper):
        names = ", ".join(tree.candidates[k].axis for k, count in enumerate(deeper) if count > 1)
        raise PlanError(
            stage="split",
            what="a region is nested in a nested region",
            where=body.region.axis,
            got=names,
            expected="regions inside regions, one deep",
        )
    return region_of(tree.candidates[index], parts[index])


def _in_part(body: Body, region: Region, graph: Graph, axes: Axes) -> Region:
    """A region in terms of one part.

    Where the outer axis is outside its factor, that is shorter there; products that add to a result of the
    outer region by themselves stay outside the inner one.
    """
    own = body.part.node
    runs = tuple(run for run in region.runs if own[run.node].op == graph.node[run.node].op)
    region = replace(region, runs=runs)
    anchor = region.anchor
    if anchor is None:
        return region
    inside = frozenset(within(graph, body.region.runs))
    state = axes(graph, body.region, inside).states.get(anchor.value)
    return replace(region, anchor=_shorter(anchor, state, body.size))


def _shorter(anchor: Anchor, state: object, size: int) -> Anchor:
    within = isinstance(state, Factor) and state.dim == anchor.dim
    if not within or not isinstance(state, Factor) or anchor.outer % (state.outer * state.length):
        return anchor
    return replace(anchor, outer=anchor.outer // state.length * size)
