"""The axes that a program can be split along."""

from collections.abc import Container, Iterator
from dataclasses import dataclass

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.plan import Run
from peakfold.ops.links import has_rule, without_rule
from peakfold.pipeline.task import Task
from peakfold.plan.fission.assign import Refusal, assign
from peakfold.plan.fission.dims import Component, components
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.reading import Reading
from peakfold.report.progress import Progress, silent
from peakfold.workloads import Target


@dataclass(frozen=True, slots=True)
class End:
    """Operators of one kind that end what runs along an axis: no region along it goes through them.

    Attributes:
        operator: their kind, e.g. ``"_softmax"``.
        count: how many read what runs along the axis.
        first: name of one.
        why: what it does with the axis.
    """

    operator: str
    count: int
    first: str
    why: str


@dataclass(frozen=True, slots=True)
class AxisRow:
    """One axis of a program.

    Attributes:
        name: in the user's words where they are known; what a plan names it by.
        length: its places.
        nodes: how many operators work along it.
        values: how many tensors run along it.
        nbytes: bytes of their storages.
        ends: operators that it ends at, those that most are of first.
    """

    name: str
    length: int
    nodes: int
    values: int
    nbytes: int
    ends: tuple[End, ...] = ()


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
    return AxesOf(name, len(graph.nodes), tuple(_rows(graph)), without_rule(graph))


def _rows(graph: Graph) -> Iterator[AxisRow]:
    reading = Reading(graph)
    for axis in components(graph, reading.links):
        values = len({value for value, _ in axis.members})
        yield AxisRow(axis.name, axis.finest, axis.nodes, values, axis.nbytes, ends(reading, axis))


def ends(reading: Reading, axis: Component) -> tuple[End, ...]:
    """Return the operators that read what runs along an axis and cannot be done part by part.

    Args:
        reading: of the program.
        axis: one of its axes.
    """
    graph = reading.graph
    members = {value for value, _ in axis.members}
    readers = sorted({graph.place[user] for value in members for user in graph.users.get(value, ())})
    kinds: dict[tuple[str, str], list[Node]] = {}
    for node in (graph.nodes[place] for place in readers):
        why = _why_it_ends(reading, axis, members, node) if axis.length > 1 else None
        if why is not None:
            kinds.setdefault((node.op.packet, why), []).append(node)
    found = [End(kind, len(nodes), nodes[0].name, why) for (kind, why), nodes in kinds.items()]
    return tuple(sorted(found, key=lambda end: -end.count))


def _why_it_ends(reading: Reading, axis: Component, members: Container[Value], node: Node) -> str | None:
    """Say what a node does with an axis that it reads; None where it goes on, or is a sum over it."""
    if node.is_host:
        return None
    if node.is_view:
        return None if any(value in members for value in node.outputs) else "picks places of it"
    refused = assign(reading.graph, [Run(node.id)], axis, reading=reading)
    if not isinstance(refused, Refusal):
        return None
    if not has_rule(node.op.name):
        return "has no rule"
    return "needs all of it at once" if refused.node == node.id else "runs along it twice"
