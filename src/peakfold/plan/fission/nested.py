"""A state of the fission tree as regions of a plan, nested ones inside the plans of the outer ones."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from peakfold.ir.graph import Graph, Node
from peakfold.ir.plan import Anchor, Plan, Region
from peakfold.plan.fission.accumulate import PRODUCTS
from peakfold.plan.fission.axes import Axes
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.derived import Body
from peakfold.plan.fission.split import within
from peakfold.plan.fission.started import apart
from peakfold.plan.fission.states import Factor
from peakfold.plan.fission.tree import Parts, Tree, region_of, rest_of

Placed = Callable[[Region], Region]


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
    found = tuple(
        region for index in tree.outermost(parts) for region in _regions(graph, tree, parts, index, known)
    )
    if len(found) == 1 or all(region.plan is None for region in found):
        return found
    bodies = derive(graph, found, known).bodies.values()
    return tuple(_named(region, body) for region, body in zip(found, bodies, strict=True))


def _named(region: Region, body: Body) -> Region:
    """A region whose plan names the graph of a part: what of it others read depends on the other regions."""
    plan = region.plan
    return region if plan is None else replace(region, plan=replace(plan, graph=body.part.digest))


def _regions(
    graph: Graph, tree: Tree, parts: Parts, index: int, axes: Axes, placed: Placed = lambda region: region
) -> Iterator[Region]:
    """The loops of a candidate, with all that is nested in them.

    Args:
        graph: the program, or the graph of a part that the region is in.
        tree: the candidates, of the program.
        parts: the state.
        index: of the candidate.
        axes: knows the axes of graphs.
        placed: says what a region of the program is in that graph.
    """
    candidate = tree.candidates[index]
    loops = (region_of(candidate, parts[index]), *rest_of(candidate, parts[index]))
    for loop, region in enumerate(loops):
        yield _around(graph, tree, tree.inside(parts, index, loop), placed(region), axes, placed)


def _around(graph: Graph, tree: Tree, inner: Parts, outer: Region, axes: Axes, placed: Placed) -> Region:
    """A region with the state of what is nested in it."""
    if all(count == 1 for count in inner):
        return outer
    (body,) = derive(graph, (outer,), axes).bodies.values()

    def in_part(region: Region) -> Region:
        return _in_part(body, placed(region), graph, axes)

    regions = tuple(
        region for k in tree.outermost(inner) for region in _regions(body.part, tree, inner, k, axes, in_part)
    )
    return replace(outer, plan=Plan(body.part.digest, regions=regions))


def _in_part(body: Body, region: Region, graph: Graph, axes: Axes) -> Region:
    """A region in terms of one part.

    Where the outer axis is outside its factor, that is shorter there; what the outer region leaves out stays
    outside the inner one.
    """
    graph, own = apart(graph, (body.region,)), body.part.node
    runs = tuple(
        run for run in region.runs if run.node in own and _is_same(own[run.node], graph.node[run.node])
    )
    region = replace(region, runs=runs)
    anchor = region.anchor
    if anchor is None:
        return region
    inside = frozenset(within(graph, body.region.runs))
    state = axes(graph, body.region, inside).states.get(anchor.value)
    return replace(region, anchor=_shorter(anchor, state, body.size))


def _is_same(own: Node, node: Node) -> bool:
    """Whether a node of a part does what it does in the program, be it into a sum of the part."""
    return own.op.name in (node.op.name, PRODUCTS.get(node.op.name))


def _shorter(anchor: Anchor, state: object, size: int) -> Anchor:
    within = isinstance(state, Factor) and state.dim == anchor.dim
    if not within or not isinstance(state, Factor) or anchor.outer % (state.outer * state.length):
        return anchor
    return replace(anchor, outer=anchor.outer // state.length * size)
