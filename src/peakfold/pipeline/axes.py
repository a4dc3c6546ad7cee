"""The axes that a program can be split along."""

from collections.abc import Iterator
from dataclasses import dataclass

from peakfold.ops.links import without_rule
from peakfold.pipeline.task import Task
from peakfold.plan.fission.dims import Component, components
from peakfold.plan.fission.prepare import prepare
from peakfold.report.progress import Progress, silent
from peakfold.workloads import Target


@dataclass(frozen=True, slots=True)
class AxisRow:
    """One axis of a program.

    Attributes:
        name: in the user's words where they are known; what a plan names it by.
        length: its places.
        nodes: how many operators work along it.
        values: how many tensors run along it.
        nbytes: bytes of their storages.
    """

    name: str
    length: int
    nodes: int
    values: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class AxesOf:
    """The axes of a program.

    Attributes:
        target: what the user calls the program.
        operators: how many nodes it has.
        axes: those of most bytes first.
        barriers: operators without a rule: no region goes through them.
    """

    target: str
    operators: int
    axes: tuple[AxisRow, ...]
    barriers: tuple[str, ...]


def axes_of(target: Target, name: str, progress: Progress = silent) -> AxesOf:
    """Return the axes that a target can be split along; it is captured, and nothing is run.

    Args:
        target: what is captured.
        name: what the user calls it.
        progress: told where it is.

    Raises:
        CaptureError: the program cannot be captured.
    """
    progress("capture", 0.0, "")
    graph = prepare(Task.of(target).capture().graph)
    progress("capture", 1.0, "")
    return AxesOf(name, len(graph.nodes), tuple(_rows(components(graph))), without_rule(graph))


def _rows(found: tuple[Component, ...]) -> Iterator[AxisRow]:
    for axis in found:
        values = len({value for value, _ in axis.members})
        yield AxisRow(axis.name, axis.finest, axis.nodes, values, axis.nbytes)
