"""From the regions of a plan to its graphs: the axes are found by name, the states by the dimension graph."""

from collections.abc import Sequence
from dataclasses import replace

from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan, Region
from peakfold.plan.fission.axes import Axes
from peakfold.plan.fission.derived import Derived
from peakfold.plan.fission.part import part_of
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.split import split


def derive(graph: Graph, regions: Sequence[Region], axes: Axes | None = None) -> Derived:
    """Return the outer graph and the bodies of regions, nested ones included.

    Args:
        graph: what is computed, prepared.
        regions: disjoint over runs.
        axes: knows the axes of graphs that were split before; give it again to save their analysis.

    Raises:
        PlanError: a region is none, with the reason.
    """
    return split(graph, regions, axes or Axes(), part_of)


def derived(graph: Graph, plan: Plan, axes: Axes | None = None) -> Derived:
    """Return the graphs that a plan for a graph comes to; without regions it is the graph itself.

    Raises:
        PlanError: a region is none, with the reason.
    """
    return derive(prepare(graph), plan.regions, axes) if plan.regions else Derived(graph, {})


class Splitter:
    """Makes the graphs whose nodes the text of a plan with regions names; what it made is kept.

    Give one to all plans of a program: those that split the same share its graphs.
    """

    def __init__(self) -> None:
        """Begin without any axes."""
        self._axes = Axes()
        self._prepared: dict[int, tuple[Graph, Graph]] = {}
        self._made: dict[tuple[int, tuple[Region, ...]], tuple[Graph, Graph, tuple[Graph, ...]]] = {}

    def prepared(self, graph: Graph) -> Graph:
        """Return the graph that regions are of."""
        if id(graph) not in self._prepared:
            self._prepared[id(graph)] = (graph, prepare(graph))
        return self._prepared[id(graph)][1]

    def graphs(self, graph: Graph, regions: Sequence[Region]) -> tuple[Graph, tuple[Graph, ...]]:
        """Return the outer graph and the graph of one part of each region."""
        key = (id(graph), tuple(bare(region) for region in regions))
        if key not in self._made:
            found = derive(graph, regions, self._axes)
            parts = tuple(body.part for body in found.bodies.values())
            self._made[key] = (graph, found.graph, parts)
        _, outer, parts = self._made[key]
        return outer, parts


def bare(region: Region) -> Region:
    """Return a region and what is nested in it without decisions: all that its graphs depend on."""
    nested = () if region.plan is None else region.plan.regions
    plan = Plan("", regions=tuple(bare(one) for one in nested)) if nested else None
    return replace(region, plan=plan)
