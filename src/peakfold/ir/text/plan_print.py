"""A Plan as the text that a person edits."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import CompressGap, OffloadGap, Plan, Recompute
from peakfold.ir.text.quoting import quoted_name
from peakfold.ir.text.regions import Splitter, print_region

HEADER = "peakfold plan 1"
EARLY, LAST = "each parameter as soon as its gradient is complete", "after everything else"
REUSE, NO_REUSE = "buffers of dying operands", "nothing"
DROP = "and drop it in between"
SINCE = "and hold it from"
START = "start"


Notes = Mapping[Recompute | OffloadGap, str]


def print_plan(plan: Plan, graph: Graph, notes: Notes | None = None, splitter: Splitter | None = None) -> str:
    """Return a plan as text that `parse_plan` reads back.

    Args:
        plan: a plan for the graph.
        graph: gives names.
        notes: a comment for the line of a decision, e.g. what it saves and costs.
        splitter: makes the graphs of regions; needed where the plan has any.

    Example:
        >>> print(print_plan(Plan("3f2a"), Graph((), (), ())))
        peakfold plan 1 for graph 3f2a (0 nodes, 0 inputs, 0 state)
        update      each parameter as soon as its gradient is complete      # or: after everything else
        reuse       buffers of dying operands                               # or: nothing
        <BLANKLINE>
    """
    lines = [f"{HEADER} for graph {plan.graph} ({summary(graph)})"]
    early = plan.updates == "early"
    lines.append(_line("update", EARLY if early else LAST, f"or: {LAST if early else EARLY}"))
    lines.append(
        _line("reuse", REUSE if plan.reuse else NO_REUSE, f"or: {NO_REUSE if plan.reuse else REUSE}")
    )
    whole = splitter.prepared(graph) if splitter is not None and plan.regions else graph
    lines += _decisions(plan, whole, notes or {}, splitter)
    return "\n".join(lines) + "\n"


def _decisions(plan: Plan, graph: Graph, notes: Notes, splitter: Splitter | None) -> Iterator[str]:
    """Yield the lines of regions, with those about a part behind them, and of all other decisions."""
    outer = graph
    if plan.regions:
        assert splitter is not None, "a plan with regions is printed with what splits its graph"
        outer, bodies = splitter.graphs(graph, plan.regions)
        for region, body in zip(plan.regions, bodies, strict=True):
            yield _line("split", print_region(region, graph))
            yield from (f"    {line}" for line in _inside(region.plan, body, notes, splitter))
    yield from (_recompute(outer, item, notes.get(item, "")) for item in plan.recompute)
    yield from (_offload(outer, item, notes.get(item, "")) for item in plan.offload)
    yield from (_compress(outer, item) for item in plan.compress)
    yield from (_move(outer, *move) for move in moves(own_order(outer), plan.order) if plan.order)


def _inside(plan: Plan | None, body: Graph, notes: Notes, splitter: Splitter) -> Iterator[str]:
    if plan is None:
        return
    if plan.updates == "last":
        yield _line("update", LAST)
    if not plan.reuse:
        yield _line("reuse", NO_REUSE)
    yield from _decisions(plan, body, notes, splitter)


def summary(graph: Graph) -> str:
    """Return the sizes of a graph in words."""
    return f"{len(graph.nodes)} nodes, {len(graph.inputs)} inputs, {len(graph.state)} state"


def own_order(graph: Graph) -> tuple[int, ...]:
    """Return the ids of all nodes that are not views, in program order."""
    return tuple(node.id for node in graph.nodes if not node.is_view)


def moves(own: Sequence[int], order: Sequence[int]) -> Iterator[tuple[int, int | None]]:
    """Yield the fewest moves from one order to another: a node, and the one it is put before (None: the end).

    Done one after the other, they turn ``own`` into ``order``. What stays is a longest increasing
    subsequence (Fredman 1975, by patience sorting).

    Example:
        >>> list(moves((1, 2, 3, 4), (2, 3, 1, 4)))
        [(1, 4)]
    """
    place = {ident: at for at, ident in enumerate(own)}
    still = {order[i] for i in _increasing([place[ident] for ident in order])}
    for at in range(len(order) - 1, -1, -1):
        if order[at] not in still:
            yield order[at], order[at + 1] if at + 1 < len(order) else None


def _increasing(numbers: Sequence[int]) -> list[int]:
    """Return the places of a longest increasing subsequence."""
    tails: list[int] = []
    places: list[int] = []
    before: list[int] = []
    for at, number in enumerate(numbers):
        length = bisect_left(tails, number)
        before.append(places[length - 1] if length else -1)
        tails[length:] = [number, *tails[length + 1 :]]
        places[length:] = [at, *places[length + 1 :]]
    found, at = [], places[-1] if places else -1
    while at >= 0:
        found.append(at)
        at = before[at]
    return found[::-1]


def _line(key: str, text: str, comment: str = "") -> str:
    return f"{key:<11} {text:<55} # {comment}" if comment else f"{key:<11} {text}"


def _recompute(graph: Graph, item: Recompute, note: str) -> str:
    text = f"{_name(graph, item.node)} before {_name(graph, item.use)}"
    if not item.hold:
        text = f"{text} {DROP}"
    elif item.since is not None:
        text = f"{text} {SINCE} {_name(graph, item.since)}"
    return _line("recompute", text, note)


def _offload(graph: Graph, item: OffloadGap, note: str) -> str:
    after, gone, fetch, use = (_place(graph, node) for node in (item.after, item.gone, item.fetch, item.use))
    text = f"{_value(graph, item.value)} after {after} gone by {gone} fetched from {fetch} back before {use}"
    return _line("offload", text, note)


def _compress(graph: Graph, item: CompressGap) -> str:
    after, use = _place(graph, item.after), _place(graph, item.use)
    return _line("compress", f"{_value(graph, item.value)} after {after} back before {use}")


def _value(graph: Graph, value: Value) -> str:
    if value.node in graph.input:
        return f"input {quoted_name(graph.input[value.node].name)}"
    whole = len(graph.node[value.node].types) == 1
    return _name(graph, value.node) if whole else f"output {value.index} of {_name(graph, value.node)}"


def _place(graph: Graph, node: int) -> str:
    return START if node in graph.input else _name(graph, node)


def _move(graph: Graph, node: int, before: int | None) -> str:
    target = "to the end" if before is None else f"before {_name(graph, before)}"
    return _line("move", f"{_name(graph, node)} {target}")


def _name(graph: Graph, node: int) -> str:
    return quoted_name(graph.node[node].name)
