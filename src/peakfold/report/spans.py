"""From a Graph and a Schedule to who holds which bytes when: what every face draws from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.plan import Buffer, Compute, Free, Loop, Offload, Prefetch, Reuse, Run, Schedule, Step
from peakfold.ir.types import TensorType
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
    """One buffer over its life. ``end`` is the first step without it, ``reads`` the steps that read it."""

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
    """Every operator run that takes part, and every buffer that it meets."""

    runs: tuple[Run, ...]
    spans: tuple[Span, ...]


def spans_of(graph: Graph, schedule: Schedule, costs: Costs) -> Spans:
    """Follow a schedule and note the life of each buffer; a loop counts as one of its parts."""
    walk = _Walk(graph, costs)
    for step in _flat(schedule.steps):
        walk.take(step)
    return walk.finish()


def timeline_of(graph: Graph, schedule: Schedule, costs: Costs) -> Timeline:
    """Return memory over the step for a schedule.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(10))
        >>> node = Node(1, "relu", Op("aten.relu.default"), (Value(0),), (), (tensor(10),), (None,))
        >>> graph = Graph((x,), (node,), (Output("y", Value(1)),))
        >>> timeline_of(graph, Schedule((Compute(Run(1)),)), Costs({1: 0.5}, {1: 8})).at_peak
        {'batch': 40, 'activations': 40, 'workspace': 8}
    """
    found = spans_of(graph, schedule, costs)
    blocks = tuple(_block(graph, span) for span in found.spans if span.nbytes and span.end > span.start)
    seconds = tuple(costs.seconds.get(run.node, 0.0) for run in found.runs)
    return Timeline(tuple(run_name(graph, run) for run in found.runs), seconds, blocks)


def run_name(graph: Graph, run: Run) -> str:
    """Return a readable name of a run."""
    return graph.node[run.node].name + (" (again)" if run.k else "")


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
        if node.origin.phase != "update":
            continue
        read = (graph.storage(value) for value in node.inputs)
        kinds.update((value, "gradients") for value in read if kinds.get(value) == "activations")
    for pair in graph.state:
        root = graph.storage(pair.output)
        if root.node in graph.node and pair.input in graph.input:
            kinds[root] = KIND_OF_INPUT[graph.input[pair.input].kind]
    return kinds


def _flat(steps: tuple[Step, ...]) -> Iterator[Step]:
    stack = list(reversed(steps))
    while stack:
        step = stack.pop()
        if isinstance(step, Loop):
            stack.extend(reversed(step.steps))
        else:
            yield step


class _Walk:
    """The state of one walk over a schedule."""

    def __init__(self, graph: Graph, costs: Costs) -> None:
        self.graph, self.costs, self.kinds = graph, costs, kinds_of(graph)
        self.runs: list[Run] = []
        self.spans: list[Span] = []
        self.open: dict[Buffer, Span] = {}
        self.latest: dict[Value, Buffer] = {}
        for given in graph.inputs:
            if isinstance(given.type, TensorType):
                self._begin(Buffer(Value(given.id)), given.type.nbytes, resident=True)

    def take(self, step: Step) -> None:
        """Account for one step."""
        if isinstance(step, Compute):
            self._compute(step)
        elif isinstance(step, Free | Offload):
            self._end(step.buffer)
        elif isinstance(step, Prefetch):
            self._begin(step.buffer, self.graph.nbytes(step.buffer.value))

    def finish(self) -> Spans:
        """Close what is still open and return everything."""
        for buffer in list(self.open):
            self._end(buffer)
        return Spans(tuple(self.runs), tuple(sorted(self.spans, key=lambda span: span.start)))

    def _begin(self, buffer: Buffer, nbytes: int, resident: bool = False) -> None:
        now = len(self.runs)
        span = Span(buffer, self.kinds[buffer.value], nbytes, now, now, resident)
        self.open[buffer] = span
        self.latest[buffer.value] = buffer
        self.spans.append(span)

    def _end(self, buffer: Buffer) -> None:
        span = self.open.pop(buffer, None)
        if span is not None and not any(other is span for other in self.open.values()):
            span.end = len(self.runs)

    def _compute(self, step: Compute) -> None:
        node = self.graph.node[step.run.node]
        if node.is_view or node.is_host:
            return
        self._read(node)
        reused = {reuse.output: reuse for reuse in step.reuses}
        for index, value in enumerate(node.outputs):
            if node.aliases[index] is None and isinstance(node.types[index], TensorType):
                self._make(Buffer(value, step.run.k), reused.get(index))
        self._scratch(step.run)
        self.runs.append(step.run)

    def _read(self, node: Node) -> None:
        for root in dict.fromkeys(self.graph.storage(value) for value in node.inputs):
            buffer = self.latest.get(root)
            if buffer in self.open:
                self.open[buffer].reads.append(len(self.runs))

    def _make(self, buffer: Buffer, reuse: Reuse | None) -> None:
        taken = self._taken(reuse)
        if taken is None:
            self._begin(buffer, self.graph.nbytes(buffer.value))
        elif self.open[taken].resident:
            self.open[buffer] = self.open[taken]
            self.latest[buffer.value] = buffer
        else:
            nbytes = self.open[taken].nbytes
            self._end(taken)
            self._begin(buffer, nbytes)

    def _taken(self, reuse: Reuse | None) -> Buffer | None:
        if reuse is None:
            return None
        buffer = self.latest.get(self.graph.storage(reuse.operand))
        return buffer if buffer in self.open else None

    def _scratch(self, run: Run) -> None:
        nbytes = self.costs.workspace.get(run.node, 0)
        now = len(self.runs)
        if nbytes:
            scratch = Span(Buffer(Value(run.node), run.k), "workspace", nbytes, now, now + 1, scratch=True)
            self.spans.append(scratch)


def _block(graph: Graph, span: Span) -> Block:
    origin = graph.node[span.buffer.value.node].origin if span.buffer.value.node in graph.node else None
    return Block(
        name=span_name(graph, span),
        kind=span.kind,
        nbytes=span.nbytes,
        start=span.start,
        end=span.end,
        module=origin.module if origin else "",
        source=origin.source if origin else "",
    )


def span_name(graph: Graph, span: Span) -> str:
    """Return a readable name of what a span holds."""
    if span.scratch:
        return f"scratch of {graph.node[span.buffer.value.node].name}"
    return graph.name_of(span.buffer.value) + (" (again)" if span.buffer.k else "")
