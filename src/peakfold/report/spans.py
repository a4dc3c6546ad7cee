"""From a simulated schedule to who holds which bytes when: what every face draws from."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Buffer, Compute, Loop, Prefetch, Release, Schedule, Step
from peakfold.plan.schedule.simulate import simulate
from peakfold.plan.schedule.tape import FOREVER
from peakfold.plan.schedule.timeline import Timeline as Simulated
from peakfold.report.model import Block, BlockKind, Timeline

KIND_OF_INPUT: Mapping[str, BlockKind] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "batch": "batch",
    "constant": "buffers",
}


@dataclass
class Span:
    """One buffer over its life.

    Attributes:
        buffer: whose bytes.
        kind: what it is.
        nbytes: its bytes.
        start: first point with it.
        end: first point without it.
        resident: whether it is there before and after the step.
        scratch: whether it is hidden workspace of the operator that made ``buffer``.
        reads: points that read it, in order.
    """

    buffer: Buffer
    kind: BlockKind
    nbytes: int
    start: int
    end: int
    resident: bool = False
    scratch: bool = False
    reads: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Spans:
    """The points of a program at which bytes are taken, and every buffer that lives at some of them.

    Attributes:
        points: operators that run, in order; also prefetches and the beginnings of loops.
        seconds: of each.
        spans: in order of their start.
    """

    points: tuple[Step, ...]
    seconds: tuple[float, ...]
    spans: tuple[Span, ...]


def timeline_of(graph: Graph, schedule: Schedule, costs: Costs) -> Timeline:
    """Return memory over the step for a schedule; its peak is the simulated one.

    Example:
        >>> from peakfold.ir.graph import Input, Node, Op, Output
        >>> from peakfold.ir.plan import Run
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(10))
        >>> node = Node(1, "relu", Op("aten.relu.default"), (Value(0),), (), (tensor(10),), (None,))
        >>> graph = Graph((x,), (node,), (Output("y", Value(1)),))
        >>> timeline_of(graph, Schedule((Compute(Run(1)),)), Costs({1: 0.5}, {1: 8})).at_peak
        {'batch': 40, 'activations': 40, 'workspace': 8}
    """
    found = spans_of(graph, schedule, costs)
    blocks = tuple(_block(graph, span) for span in found.spans if span.nbytes and span.end > span.start)
    return Timeline(tuple(point_name(graph, point) for point in found.points), found.seconds, blocks)


def spans_of(graph: Graph, schedule: Schedule, costs: Costs) -> Spans:
    """Return the life of each buffer of a schedule; a loop counts as one of its parts."""
    simulated = simulate(graph, costs, schedule)
    rows = [row for row, step in enumerate(simulated.steps) if _is_point(graph, simulated, row, step)]
    spans = [*_buffers(graph, simulated, rows), *_scratches(simulated, rows)]
    _note_reads(graph, spans, [simulated.steps[row] for row in rows])
    return Spans(
        tuple(simulated.steps[row] for row in rows),
        tuple(round(simulated.end[row] - simulated.begin[row], 9) for row in rows),
        tuple(sorted(spans, key=lambda span: span.start)),
    )


def point_name(graph: Graph, point: Step) -> str:
    """Return a readable name of a point."""
    if isinstance(point, Compute):
        return graph.node[point.run.node].name + (" (again)" if point.run.k else "")
    if isinstance(point, Prefetch):
        return f"prefetch {graph.name_of(point.buffer.value)}"
    return f"loop {point.region}" if isinstance(point, Loop) else type(point).__name__


def span_name(graph: Graph, span: Span) -> str:
    """Return a readable name of what a span holds."""
    if span.scratch:
        return f"scratch of {graph.node[span.buffer.value.node].name}"
    return graph.name_of(span.buffer.value) + (" (again)" if span.buffer.k else "")


def kinds_of(graph: Graph) -> Mapping[Value, BlockKind]:
    """Return the kind of each storage of a graph.

    What the update reads and the rest of the step makes is a gradient; what the update makes for itself
    is workspace; a new value has the kind of what it replaces.
    """
    kinds: dict[Value, BlockKind] = {
        Value(given.id): KIND_OF_INPUT[given.kind] for given in graph.inputs if given.kind in KIND_OF_INPUT
    }
    for node in graph.nodes:
        made: BlockKind = "workspace" if node.origin.phase == "update" else "activations"
        kinds.update((value, made) for value in node.outputs if graph.storage(value) == value)
    for node in graph.nodes:
        if node.origin.phase == "update":
            read = (graph.storage(value) for value in node.inputs)
            kinds.update((value, "gradients") for value in read if kinds.get(value) == "activations")
    for pair in graph.state:
        root = graph.storage(pair.output)
        if root.node in graph.node and Value(pair.input) in kinds:
            kinds[root] = kinds[Value(pair.input)]
    return kinds


def _is_point(graph: Graph, simulated: Simulated, row: int, step: Step) -> bool:
    if isinstance(step, Compute):
        return not graph.node[step.run.node].is_host
    begins = isinstance(step, Loop) and step not in simulated.steps[:row]
    return begins or isinstance(step, Prefetch)


def _buffers(graph: Graph, simulated: Simulated, rows: list[int]) -> Iterator[Span]:
    """Each buffer with bytes; a new value written into its state input's bytes counts as the input."""
    kinds = kinds_of(graph)
    for span in simulated.spans:
        begins = span.first < 0 or isinstance(simulated.steps[span.first], Prefetch)
        if not span.nbytes or (span.resident and not begins):
            continue
        start = bisect_left(rows, span.first)
        ends = not span.resident or (
            span.last != FOREVER and span.last >= 0 and isinstance(simulated.steps[span.last], Release)
        )
        end = bisect_right(rows, span.last) if ends else len(rows)
        yield Span(span.buffer, kinds[span.buffer.value], span.nbytes, start, end, span.resident)


def _scratches(simulated: Simulated, rows: list[int]) -> Iterator[Span]:
    for point, row in enumerate(rows):
        step = simulated.steps[row]
        if simulated.workspace[row] and isinstance(step, Compute):
            buffer = Buffer(Value(step.run.node), step.run.k)
            nbytes = simulated.workspace[row]
            yield Span(buffer, "workspace", nbytes, point, point + 1, scratch=True)


def _note_reads(graph: Graph, spans: list[Span], points: list[Step]) -> None:
    """Tell each span which points read it: the latest that began before the point."""
    lives: dict[Value, list[Span]] = {}
    for span in spans:
        if not span.scratch:
            lives.setdefault(span.buffer.value, []).append(span)
    for at, point in enumerate(points):
        if not isinstance(point, Compute):
            continue
        for root in dict.fromkeys(map(graph.storage, graph.node[point.run.node].inputs)):
            begun = [span for span in lives.get(root, ()) if span.resident or span.start < at]
            if begun:
                begun[-1].reads.append(at)


def _block(graph: Graph, span: Span) -> Block:
    node = graph.node.get(span.buffer.value.node)
    return Block(
        name=span_name(graph, span),
        kind=span.kind,
        nbytes=span.nbytes,
        start=span.start,
        end=span.end,
        module=node.origin.module if node else "",
        source=node.origin.source if node else "",
    )
