"""From a program to its allocations: predicted from a schedule, or read from what an allocator saw.

Both count the same: an output, unless it takes over an operand's bytes; hidden workspace inside its step;
nothing for views, and nothing for what is written over the caller's own tensors.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Buffer, Compute, Free, Loop, Prefetch, Schedule, Step
from peakfold.ir.types import TensorType
from peakfold.plan.memory.trace import Request, Trace
from peakfold.plan.schedule.simulate import simulate
from peakfold.plan.schedule.tape import FOREVER, Span
from peakfold.plan.schedule.timeline import Timeline, kinds

ALLOCATE, FREE, MARK = range(3)
"""What an allocator saw: so many bytes asked for, the request of an index given back, the end of a step."""

KINDS: Mapping[str, str] = {
    "activation": "activations",
    "gradient": "gradients",
    "temporary": "workspace",
    "parameter": "parameters",
    "buffer": "buffers",
    "optimizer": "optimizer state",
    "batch": "batch",
    "constant": "buffers",
}
"""What a report calls a kind of storage."""


def predicted(graph: Graph, schedule: Schedule, costs: Costs) -> Trace:
    """Return the allocations that a schedule comes to; hidden workspace is one block in its step.

    A loop is one of its parts: what outlives a part lives over all of the loop.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output, Node
        >>> from peakfold.ir.plan import Run
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(4))
        >>> exp = Node(1, "exp", Op("aten.exp.default"), (Value(0),), (), (tensor(4),), (None,))
        >>> neg = Node(2, "neg", Op("aten.neg.default"), (Value(1),), (), (tensor(4),), (None,))
        >>> graph = Graph((x,), (exp, neg), (Output("y", Value(2)),))
        >>> steps = (Compute(Run(1)), Compute(Run(2)), Free(Buffer(Value(1))))
        >>> trace = predicted(graph, Schedule(steps), Costs({}, {2: 8}))
        >>> [(request.name, request.size, request.born, request.dies) for request in trace.requests]
        [('exp', 16, 0, 3), ('scratch of neg', 8, 1, 2), ('neg', 16, 1, None)]
    """
    line = simulate(graph, costs, schedule)
    names = tuple(step_name(graph, step) for step in line.steps)
    requests = [*_outputs(graph, line), *_workspace(graph, line)]
    requests.sort(key=lambda request: (request.born, request.kind != "workspace"))
    return Trace(tuple(requests), names, len(names) + 1)


def recorded(events: Sequence[tuple[int, int]], graph: Graph, schedule: Schedule) -> Trace:
    """Return what an allocator saw of one run as a trace, each request with its name.

    Args:
        events: pairs (`ALLOCATE`, bytes), (`FREE`, index of the request) and (`MARK`, 0), in order.
        graph: what was run.
        schedule: how; a mark ends each of its steps.
    """
    raw = list(_requests(events))
    steps = schedule.steps
    named = _Names(graph, steps)
    requests = tuple(named.of(request) for request in raw)
    return Trace(requests, tuple(step_name(graph, step) for step in steps), len(events) + 1)


def step_name(graph: Graph, step: Step) -> str:
    """Return a readable name of a step.

    Example:
        >>> step_name(Graph((), (), ()), Loop("batch", 4, ()))
        'loop batch'
    """
    if isinstance(step, Compute):
        return graph.node[step.run.node].name + (" (again)" if step.run.k else "")
    if isinstance(step, Loop):
        return f"loop {step.region}"
    if isinstance(step, Free | Prefetch):
        return f"{type(step).__name__.lower()} {graph.name_of(step.buffer.value)}"
    return type(step).__name__.lower()


def _outputs(graph: Graph, line: Timeline) -> Iterator[Request]:
    """Every block that the program makes, under the name that it has first."""
    kind_of = kinds(graph)
    heirs = _heirs(graph, line)
    given = {span.buffer for span in line.spans if span.resident}
    taken = set(heirs.values())
    by_buffer = {(span.buffer, span.first): span for span in line.spans}
    for span in line.spans:
        if span.buffer in given or (span.buffer, span.first) in taken or not span.nbytes:
            continue
        last = span
        while (key := heirs.get((last.buffer, last.first))) is not None:
            last = by_buffer[key]
        name = graph.name_of(span.buffer.value) + (" (again)" if span.buffer.k else "")
        dies = None if last.last == FOREVER else last.last + 1
        yield Request(span.nbytes, span.first, dies, span.first, name, KINDS[kind_of[span.buffer.value]])


Key = tuple[Buffer, int]


def _heirs(graph: Graph, line: Timeline) -> dict[Key, Key]:
    """Who takes over whose block: the span that ends, to the one that begins, by buffer and first row."""
    ending: dict[tuple[Value, int], Span] = {}
    for span in line.spans:
        if span.last != FOREVER:
            ending[span.buffer.value, span.last] = span
    found: dict[Key, Key] = {}
    for row, step in enumerate(line.steps):
        for reuse in step.reuses if isinstance(step, Compute) else ():
            old = ending.get((graph.storage(reuse.operand), row - 1))
            assert isinstance(step, Compute)
            if old is not None:
                new = Buffer(Value(step.run.node, reuse.output), step.run.k)
                found[old.buffer, old.first] = (new, row)
    return found


def _workspace(graph: Graph, line: Timeline) -> Iterator[Request]:
    for row, (step, nbytes) in enumerate(zip(line.steps, line.workspace, strict=True)):
        if nbytes and isinstance(step, Compute):
            name = f"scratch of {graph.node[step.run.node].name}"
            yield Request(nbytes, row, row + 1, row, name)


def _requests(events: Sequence[tuple[int, int]]) -> Iterator[Request]:
    dies = {index: at for at, (kind, index) in enumerate(events) if kind == FREE}
    row = count = 0
    for at, (kind, number) in enumerate(events):
        if kind == ALLOCATE:
            yield Request(number, at, dies.get(count), row)
            count += 1
        row += kind == MARK


@dataclass
class _Names:
    """Names of requests, by the step that makes them."""

    graph: Graph
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        self._kinds = kinds(self.graph)
        self._left: dict[int, Counter[Value]] = {}

    def of(self, request: Request) -> Request:
        """Return a request with the name of the output that it is, or of the step whose workspace it is."""
        step = self.steps[request.row] if request.row < len(self.steps) else None
        if not isinstance(step, Compute):
            return replace(
                request, name="the end of the step" if step is None else step_name(self.graph, step)
            )
        left = self._left.setdefault(request.row, Counter(self._made(step)))
        for value in left:
            if left[value] and self.graph.nbytes(value) == request.size:
                left[value] -= 1
                name = self.graph.name_of(value) + (" (again)" if step.run.k else "")
                return replace(request, name=name, kind=KINDS[self._kinds[value]])
        return replace(request, name=f"scratch of {self.graph.node[step.run.node].name}")

    def _made(self, step: Compute) -> Iterator[Value]:
        node = self.graph.node[step.run.node]
        reused = {reuse.output for reuse in step.reuses}
        for value, kind, alias in zip(node.outputs, node.types, node.aliases, strict=True):
            if alias is None and isinstance(kind, TensorType) and value.index not in reused:
                yield value
