"""A Plan as the text that a person edits."""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import OffloadGap, Plan, Recompute

HEADER = "peakfold plan 1"
EARLY, LAST = "each parameter as soon as its gradient is complete", "after everything else"
REUSE, NO_REUSE = "buffers of dying operands", "nothing"
DROP = "and drop it in between"
SINCE = "and hold it from"
START = "start"
RESERVED = frozenset(
    (
        "backward",
        "for",
        "before",
        "and",
        "to",
        "after",
        "gone",
        "fetched",
        "back",
        "use",
        START,
        "input",
        "output",
    )
)
_PLAIN = re.compile(r'[^\s#"*?]+')
_RANGE = re.compile(r"\[\d*:\d*\]")


def print_plan(plan: Plan, graph: Graph, notes: Mapping[Recompute | OffloadGap, str] | None = None) -> str:
    """Return a plan as text that `parse_plan` reads back.

    Args:
        plan: a plan for the graph.
        graph: gives names.
        notes: a comment for the line of a decision, e.g. what it saves and costs.

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
    lines += [_recompute(graph, item, (notes or {}).get(item, "")) for item in plan.recompute]
    lines += [_offload(graph, item, (notes or {}).get(item, "")) for item in plan.offload]
    lines += [_move(graph, *move) for move in moves(own_order(graph), plan.order)] if plan.order else []
    return "\n".join(lines) + "\n"


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


def quoted_name(name: str) -> str:
    """Return the name of a node as a plan writes it: quoted where it could be read as something else."""
    plain = _PLAIN.fullmatch(name) and name not in RESERVED and not _RANGE.search(name)
    return name if plain else json.dumps(name)


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
