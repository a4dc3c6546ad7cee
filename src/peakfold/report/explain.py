"""What is live at the peak, why it is kept, and what freeing it would cost."""

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Compute, Schedule, Step
from peakfold.report.model import BlockKind, LiveTensor
from peakfold.report.spans import Span, Spans, point_name, span_name, spans_of
from peakfold.report.units import seconds_text

WHOLE_STEP: dict[BlockKind, str] = {
    "parameters": "a parameter: part of the model",
    "buffers": "a buffer: part of the model",
    "gradients": "a gradient that was there before the step",
    "optimizer state": "state of the optimizer",
    "batch": "the batch that you passed",
}


def live_at_peak(graph: Graph, schedule: Schedule, costs: Costs) -> tuple[LiveTensor, ...]:
    """Return everything that is allocated at the peak of a schedule, largest first, then oldest first.

    Args:
        graph: the program.
        schedule: its steps.
        costs: seconds and workspace of each node.
    """
    found = spans_of(graph, schedule, costs)
    peak = _peak_step(found)
    live = [span for span in found.spans if span.nbytes and span.start <= peak < span.end]
    tensors = [_explain(graph, costs, found, span, peak) for span in live]
    return tuple(sorted(tensors, key=lambda tensor: -tensor.nbytes))


def _peak_step(found: Spans) -> int:
    change = [0] * (len(found.points) + 1)
    for span in found.spans:
        change[span.start] += span.nbytes
        change[span.end] -= span.nbytes
    best, best_step, now = -1, 0, 0
    for step in range(len(found.points)):
        now += change[step]
        if now > best:
            best, best_step = now, step
    return best_step


def _explain(graph: Graph, costs: Costs, found: Spans, span: Span, peak: int) -> LiveTensor:
    node = graph.node.get(span.buffer.value.node)
    seconds = None if _pinned(span, peak) else _recompute_seconds(graph, costs, found, span, peak)
    return LiveTensor(
        name=span_name(graph, span),
        kind=span.kind,
        nbytes=span.nbytes,
        module=node.origin.module if node else "",
        source=node.origin.source if node else "",
        why=_why(graph, found, span, peak),
        recompute_seconds=seconds,
        freeing="cannot" if seconds is None else f"{seconds_text(seconds)} to compute it again",
    )


def _next_read(span: Span, peak: int) -> int | None:
    return next((step for step in span.reads if step > peak), None)


def _pinned(span: Span, peak: int) -> bool:
    in_use = span.scratch or span.start == peak or peak in span.reads
    return span.resident or in_use or _next_read(span, peak) is None


def _why(graph: Graph, found: Spans, span: Span, peak: int) -> str:
    here = point_name(graph, found.points[peak]) if found.points else "the step"
    if span.scratch:
        return f"scratch that {here} takes while it runs"
    if span.resident:
        return WHOLE_STEP[span.kind]
    if span.start == peak:
        return f"in use now: made by {here}"
    if peak in span.reads:
        return f"in use now: read by {here}"
    later = _next_read(span, peak)
    if later is None:
        return "a result of the step"
    count = later - peak
    reader = _reader(graph, found.points[later], span)
    return f"read by {reader}, {count} operator{'s' if count > 1 else ''} later"


def _reader(graph: Graph, point: Step, span: Span) -> str:
    """The name of a reader; short where it belongs to the module that made what it reads."""
    name = point_name(graph, point)
    maker = graph.node.get(span.buffer.value.node)
    home = f"{maker.origin.module}." if maker and maker.origin.module else ""
    short = f"its {name.removeprefix(home)}" if home and name.startswith(home) else name
    if not isinstance(point, Compute) or point.run.k or "backward" in name:
        return short
    return f"{short} ({graph.node[point.run.node].origin.phase})"


def _recompute_seconds(graph: Graph, costs: Costs, found: Spans, span: Span, peak: int) -> float | None:
    """Seconds to make a value again just before its next read, from what is held by then."""
    at = _next_read(span, peak)
    assert at is not None
    held = {other.buffer.value for other in found.spans if not other.scratch and other.start < at < other.end}
    held.discard(span.buffer.value)
    again: set[int] = set()
    stack = [span.buffer.value]
    while stack:
        value = stack.pop()
        if value.node in again:
            continue
        if value.node not in graph.node:
            return None
        again.add(value.node)
        stack.extend(root for root in _roots_read(graph, value.node) if root not in held)
    return sum(costs.seconds.get(node, 0.0) for node in again)


def _roots_read(graph: Graph, node: int) -> tuple[Value, ...]:
    roots = dict.fromkeys(graph.storage(value) for value in graph.node[node].inputs)
    return tuple(root for root in roots if graph.nbytes(root))
