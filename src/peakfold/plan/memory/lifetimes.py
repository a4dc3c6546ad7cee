"""From a schedule to its allocations, as predicted: what an allocator sees is read in `recorded`.

Both count the same: an output, unless it takes over an operand's bytes; hidden workspace inside its step;
nothing for views, and nothing for what is written over the caller's own tensors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from peakfold.cost.costs import Costs
from peakfold.ir.control import COND
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Buffer, Compute, Free, Loop, Prefetch, Schedule, Step
from peakfold.plan.fission.program import Nest
from peakfold.plan.memory.trace import Request, Trace
from peakfold.plan.schedule.simulate import simulate
from peakfold.plan.schedule.tape import FOREVER, Span
from peakfold.plan.schedule.timeline import Timeline, kinds

SCRATCH, SCRATCH_OF = "workspace", "scratch of "

KINDS: Mapping[str, str] = {
    "activation": "activations",
    "gradient": "gradients",
    "temporary": SCRATCH,
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
    requests.sort(key=lambda request: (request.born, request.kind != SCRATCH))
    return Trace(tuple(requests), names, len(names) + 1)


def predicted_nest(nest: Nest) -> Trace:
    """Return the allocations of a program with regions and control flow, which stand inside their step.

    All parts of a region have their buffers at the same addresses, which are planned with those around it. So
    have both sides of a branch, one after the other, since one of them runs; and the passes of a loop. What
    either gives out is there from the beginning of its step.
    """
    outer = predicted(nest.graph, nest.schedule, nest.costs)
    bodies = {
        row: inside
        for row, step in enumerate(nest.timeline.steps)
        if isinstance(step, Compute) and (inside := _nested(nest, step.run.node)) is not None
    }
    if not bodies:
        return outer
    length = max(body.length for body in bodies.values()) + 1
    requests = [
        _stretched(request, length)
        for request in outer.requests
        if request.row not in bodies or not request.name.startswith(SCRATCH_OF)
    ]
    for row, body in bodies.items():
        requests += [_inside(request, row, row * length, length) for request in body.requests]
    requests.sort(key=lambda request: request.born)
    return Trace(tuple(requests), outer.steps, outer.length * length)


def _nested(nest: Nest, node: int) -> Trace | None:
    """Return the allocations inside of a step; None where it is one operator."""
    if node in nest.loops:
        return predicted_nest(nest.loops[node].nest)
    if node not in nest.bodies:
        return None
    begin, requests = 0, list[Request]()
    for body in nest.bodies[node]:
        inside = predicted_nest(body)
        graph, branches = body.graph, nest.graph.node[node].op.name == COND
        given_out = {graph.name_of(graph.storage(out.value)) for out in graph.outputs if branches}
        for request in inside.requests:
            if request.dies is not None or request.name not in given_out:
                requests.append(_later(request, begin, inside.length))
        begin += inside.length
    return Trace(tuple(requests), (), begin)


def _later(request: Request, begin: int, length: int) -> Request:
    dies = length if request.dies is None else request.dies
    return replace(request, born=begin + request.born, dies=begin + dies)


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
        kind = KINDS[kind_of[span.buffer.value]]
        until = -1 if dies is None else dies - 1
        yield Request(span.nbytes, span.first, dies, span.first, name, kind, until)


def _stretched(request: Request, length: int) -> Request:
    dies = None if request.dies is None else request.dies * length
    return replace(request, born=request.born * length, dies=dies)


def _inside(request: Request, row: int, begin: int, length: int) -> Request:
    """Return a request of a part of a loop, as one of the step that the loop is; it ends with the part."""
    born = begin + request.born
    dies = begin + (length if request.dies is None else request.dies)
    return replace(request, born=born, dies=dies, row=row, until=row)


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
            name = f"{SCRATCH_OF}{graph.node[step.run.node].name}"
            yield Request(nbytes, row, row + 1, row, name, until=row)
