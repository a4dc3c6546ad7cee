"""From the regions of a plan to its graphs: the axes are found by name, the states by the dimension graph."""

from collections.abc import Sequence

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
    """Makes the graphs whose nodes the text of a plan with regions names."""

    def __init__(self) -> None:
        """Begin without any axes."""
        self._axes = Axes()

    def prepared(self, graph: Graph) -> Graph:
        """Return the graph that regions are of."""
        return prepare(graph)

    def graphs(self, graph: Graph, regions: Sequence[Region]) -> tuple[Graph, tuple[Graph, ...]]:
        """Return the outer graph and the graph of one part of each region."""
        found = derive(graph, regions, self._axes)
        return found.graph, tuple(body.part for body in found.bodies.values())
