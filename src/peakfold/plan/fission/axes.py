"""From what a plan says of a region to the states of its values."""

from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Anchor, Region, Run
from peakfold.ops.links import Factor
from peakfold.plan.fission.assign import Refusal, assign
from peakfold.plan.fission.derived import Assigned
from peakfold.plan.fission.dims import Component, Vertex, components
from peakfold.plan.fission.finer import finer, times
from peakfold.plan.fission.names import is_single
from peakfold.plan.fission.reading import Reading

KEPT = 16
NAMES_SHOWN = 8


class Axes:
    """Assigns regions of graphs by the names of axes; an instance is what `split` takes as ``assign``.

    The axes of the graphs that it saw last are kept.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._known: dict[int, tuple[Reading, tuple[Component, ...]]] = {}

    def of(self, graph: Graph) -> tuple[Component, ...]:
        """Return the axes of a graph."""
        return self._of(graph)[1]

    def reading(self, graph: Graph) -> Reading:
        """Return what is known of the operators of a graph."""
        return self._of(graph)[0]

    def _of(self, graph: Graph) -> tuple[Reading, tuple[Component, ...]]:
        if id(graph) not in self._known:
            if len(self._known) >= KEPT:
                self._known.pop(next(iter(self._known)))
            reading = Reading(graph)
            self._known[id(graph)] = (reading, components(graph, reading.links))
        return self._known[id(graph)]

    def __call__(self, graph: Graph, region: Region, inside: frozenset[int]) -> Assigned:
        """Return the states of the values of a region.

        Args:
            graph: what the region is of.
            region: the region.
            inside: ids of its nodes, views included.

        Raises:
            PlanError: there is no such axis, or the region cannot be done in parts along it.
        """
        reading, axes = self._of(graph)
        component, anchor = find(axes, region, graph)
        k_of = {run.node: run.k for run in region.runs}
        runs = (Run(node, k_of.get(node, 0)) for node in inside)
        found = assign(graph, runs, component, anchor, reading)
        if isinstance(found, Refusal):
            raise _refused(region, found.why)
        by = times(inside, found, reading, component)
        return Assigned(finer(found, by), component.length * by)


def find(axes: tuple[Component, ...], region: Region, graph: Graph) -> tuple[Component, Vertex | None]:
    """Return the axis that a region names, and the factor that its anchor means.

    The anchor alone says the axis where there is one.

    Raises:
        PlanError: there is none.
    """
    if region.anchor is not None:
        return _anchored(axes, region, region.anchor)
    for component in axes:
        if component.name == region.axis:
            return component, None
    names = ", ".join(component.name for component in axes[:NAMES_SHOWN])
    if is_single(graph, region.axis):
        single = f"the {region.axis} is 1 long, and cannot be divided"
        raise _refused(region, single, f"a longer axis, e.g. {names}" if names else "")
    expected = f"an axis of the program, e.g. {names}" if names else ""
    raise _refused(region, f"no axis has the name {region.axis!r}", expected)


def anchor_of(vertex: Vertex) -> Anchor:
    """Return the anchor that means a factor of a value."""
    value, factor = vertex
    return Anchor(value, factor.dim, factor.outer)


def _anchored(
    axes: tuple[Component, ...], region: Region, anchor: Anchor
) -> tuple[Component, tuple[Value, Factor]]:
    for component in axes:
        for value, factor in component.members:
            if value == anchor.value and (factor.dim, factor.outer) == (anchor.dim, anchor.outer):
                return component, (value, factor)
    raise _refused(region, f"no axis runs through dimension {anchor.dim} of value {anchor.value.node}")


def _refused(region: Region, got: str, expected: str = "") -> PlanError:
    return PlanError(
        stage="split",
        what=f"this cannot be done in parts along {region.axis}",
        where=f"split {region.axis} into {region.parts}",
        got=got,
        expected=expected,
        hint="peakfold dims TARGET lists the axes of a program",
    )
