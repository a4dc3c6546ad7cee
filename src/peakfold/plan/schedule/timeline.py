"""What a schedule holds and takes, step by step."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Step
from peakfold.plan.schedule.tape import Span


@dataclass(frozen=True)
class Timeline:
    """A simulated program.

    Rows are the steps of the schedule; a loop has one where it begins and one where it ends, and its
    body, simulated for one part, stands between.

    Attributes:
        steps: the step on each row.
        live: bytes that live after each row, those of the caller included.
        during: the most bytes at once while each row runs: what lived before, what it makes, workspace.
        workspace: hidden bytes of each row.
        begin, end: seconds at which each row begins and ends on its own queue; in a loop, in its first part.
        spans: every buffer, graph inputs included, and the rows on which it has bytes.
        resident: bytes of all graph inputs.
        peak: the most bytes at once.
        seconds: of the whole program.
        compute_seconds, out_seconds, in_seconds: for how long each queue works.
        host_peak: the most bytes offloaded at once.
    """

    steps: tuple[Step, ...]
    live: tuple[int, ...]
    during: tuple[int, ...]
    workspace: tuple[int, ...]
    begin: tuple[float, ...]
    end: tuple[float, ...]
    spans: tuple[Span, ...]
    resident: int
    peak: int
    seconds: float
    compute_seconds: float
    out_seconds: float
    in_seconds: float
    host_peak: int

    @cached_property
    def hotspots(self) -> tuple[int, ...]:
        """Rows during which the peak is reached; empty where the inputs alone are the peak."""
        return tuple(row for row, nbytes in enumerate(self.during) if nbytes == self.peak)

    def alive(self, row: int) -> tuple[Span, ...]:
        """Return the buffers that have bytes during a row, the largest first."""
        found = [span for span in self.spans if span.nbytes and span.first <= row <= span.last]
        return tuple(sorted(found, key=lambda span: -span.nbytes))


def composition(graph: Graph, timeline: Timeline, row: int | None = None) -> Mapping[str, int]:
    """Return the bytes of each kind during a row, which add up to ``during`` of that row.

    Args:
        graph: what the timeline was simulated for.
        timeline: the simulated program.
        row: which row; the first of the hot-spots when None.
    """
    if row is None:
        row = timeline.hotspots[0] if timeline.hotspots else -1
    named = kinds(graph)
    found: dict[str, int] = {}
    for span in timeline.alive(row):
        kind = named[span.buffer.value]
        found[kind] = found.get(kind, 0) + span.nbytes
    if row >= 0 and timeline.workspace[row]:
        found["workspace"] = timeline.workspace[row]
    return MappingProxyType(found)


def kinds(graph: Graph) -> Mapping[Value, str]:
    """Return what each storage is, for the eye.

    An input is of its own kind, and so is the new value that replaces it; what the forward makes is an
    ``"activation"``; what the update reads of the backward is a ``"gradient"``; the rest is
    ``"temporary"``.
    """
    found: dict[Value, str] = dict.fromkeys(graph.storages(), "temporary")
    for node in graph.nodes:
        if node.origin.phase == "forward":
            found.update((value, "activation") for value in node.outputs if value in found)
        elif node.origin.phase == "update":
            roots = (graph.storage(value) for value in node.inputs)
            found.update({root: "gradient" for root in roots if _phase(graph, root) == "backward"})
    found.update((graph.storage(pair.output), graph.input[pair.input].kind) for pair in graph.state)
    found.update((Value(given.id), given.kind) for given in graph.inputs)
    return MappingProxyType(found)


def _phase(graph: Graph, root: Value) -> str:
    node = graph.node.get(root.node)
    return "" if node is None else node.origin.phase
