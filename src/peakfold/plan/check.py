"""What a legal graph, plan and schedule are; can be run after every stage.

The checks share no code with what makes plans and schedules: they walk the steps and ask at each one
whether what it reads is there, as a second opinion.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from peakfold.errors import PlanError
from peakfold.ir.control import violations
from peakfold.ir.graph import Graph, Node, Value, values_in
from peakfold.ir.plan import Plan, Schedule
from peakfold.ir.recompute import makers, why_not_again
from peakfold.ir.types import TensorType, Type
from peakfold.ops.packing import packing
from peakfold.plan.walk import Violation, Walk

__all__ = ["Violation", "check_graph", "check_plan", "check_schedule", "require_legal"]

SHOWN = 5


def check_graph(graph: Graph) -> list[Violation]:
    """Return everything that is wrong with a graph; a legal one gives an empty list.

    Example:
        >>> from peakfold.ir.graph import Node, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> late = Node(1, "y", Op("aten.exp.default"), (Value(7),), (), (tensor(2),), (None,))
        >>> print(*check_graph(Graph((), (late,), (Output("y", Value(1)),))))
        y: it reads Value(node=7, index=0), which nothing above it makes
    """
    return [*_names(graph), *_reads(graph), *_nodes(graph), *_streams(graph), *_state(graph)]


def check_plan(graph: Graph, plan: Plan) -> list[Violation]:
    """Return everything in a plan that is not legal for a graph."""
    if plan.graph != graph.digest:
        return [Violation("plan", f"it is for graph {plan.graph}, this is {graph.digest}")]
    return [
        *_decisions(graph, plan),
        *_offloads(graph, plan),
        *(_order(graph, plan.order) if plan.order else ()),
    ]


def check_schedule(graph: Graph, schedule: Schedule) -> list[Violation]:
    """Return everything in a schedule that would compute something else, leak, or not run.

    Legal is: each run reads what the latest runs before it made, while it is there and before its
    state is replaced; every node that matters is run first once, then again in order; random nodes
    draw in program order; a buffer is freed once; an output is written over an operand as the
    operator allows; at the end the returned values are there, each state input holds its new value,
    and nothing else is left.
    """
    return list(Walk(graph).check(schedule.steps))


def require_legal(graph: Graph, schedule: Schedule) -> None:
    """Raise unless graph and schedule are legal.

    Raises:
        PlanError: says what is wrong, the first few of it.
    """
    found = check_graph(graph) or check_schedule(graph, schedule)
    if not found:
        return
    more = f"\n    and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise PlanError(
        stage="check",
        what=f"the program is not legal: {len(found)} violations",
        where=found[0].where,
        got="\n    ".join(str(item) for item in found[:SHOWN]) + more,
        expected="a schedule as peakfold.plan.check says",
        hint="this is a fault of peakfold, not of your model: please report it with the plan and the graph",
    )


def _names(graph: Graph) -> Iterator[Violation]:
    ids = [given.id for given in graph.inputs] + [node.id for node in graph.nodes]
    names = [given.name for given in graph.inputs] + [node.name for node in graph.nodes]
    outputs = [out.name for out in graph.outputs]
    for what, items in (("id", ids), ("name", names), ("output", outputs)):
        for item, count in Counter(items).items():
            if count > 1:
                yield Violation(str(item), f"this {what} is there {count} times")


def _reads(graph: Graph) -> Iterator[Violation]:
    known = {Value(given.id) for given in graph.inputs}
    for node in graph.nodes:
        for value in values_in((*node.args, *(arg for _, arg in node.kwargs))):
            if value not in known:
                yield Violation(node.name, f"it reads {value}, which nothing above it makes")
        known.update(node.outputs)
    for out in graph.outputs:
        if out.value not in known:
            yield Violation(out.name, f"the program returns {out.value}, which nothing makes")


def _nodes(graph: Graph) -> Iterator[Violation]:
    for node in graph.nodes:
        if len(node.types) != len(node.aliases):
            yield Violation(node.name, f"it has {len(node.types)} types and {len(node.aliases)} aliases")
        reads = set(node.inputs)
        for alias in node.aliases:
            if alias is not None and alias not in reads:
                yield Violation(node.name, f"an output shares the storage of {alias}, which it does not read")
        yield from _types(node.name, node.types)
        yield from _bodies(graph, node)
    for given in graph.inputs:
        yield from _types(given.name, (given.type,))


def _bodies(graph: Graph, node: Node) -> Iterator[Violation]:
    """Check the graphs that a node of control flow runs."""
    for what in violations(node, graph):
        yield Violation(node.name, what)
    for body in node.bodies:
        for found in check_graph(body):
            yield Violation(f"{node.name}, {found.where}", found.what)


def _types(name: str, types: Sequence[Type]) -> Iterator[Violation]:
    for kind in types:
        if isinstance(kind, TensorType) and len(kind.shape) != len(kind.strides):
            yield Violation(name, f"{len(kind.shape)} dimensions have {len(kind.strides)} strides")


def _streams(graph: Graph) -> Iterator[Violation]:
    drawn = [node for node in graph.nodes if node.stream is not None]
    for node in graph.nodes:
        if node.op.random != (node.stream is not None):
            what = "random, without" if node.op.random else "not random, with"
            yield Violation(node.name, f"it is {what} a position in the random stream")
    for before, after in pairwise(drawn):
        if (before.stream or 0) >= (after.stream or 0):
            yield Violation(after.name, f"it draws {after.stream}, {before.name} above it {before.stream}")


def _state(graph: Graph) -> Iterator[Violation]:
    for ident, count in Counter(pair.input for pair in graph.state).items():
        if ident not in graph.input:
            yield Violation("state", f"{ident} is no input")
        if count > 1:
            yield Violation("state", f"input {ident} is replaced {count} times")
    made = {value for node in graph.nodes for value in node.outputs} | {Value(i) for i in graph.input}
    for pair in graph.state:
        if pair.output not in made:
            yield Violation("state", f"the new value {pair.output} is made by nothing")
        elif pair.input in graph.input and not _replaces(
            graph.input[pair.input].type, graph.type(pair.output)
        ):
            name = graph.input[pair.input].name
            yield Violation(name, f"{graph.type(pair.output)} cannot replace {graph.input[pair.input].type}")


def _replaces(old: Type, new: Type) -> bool:
    """Whether a value of one type may stand where another was: strides may differ."""
    if isinstance(old, TensorType) and isinstance(new, TensorType):
        return (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    return old == new


def _decisions(graph: Graph, plan: Plan) -> Iterator[Violation]:
    if list(plan.recompute) != sorted({(item.node, item.use): item for item in plan.recompute}.values()):
        yield Violation("plan", "its recomputes are not sorted, or one gap is decided twice")
    refused = why_not_again(graph)
    for item in plan.recompute:
        for ident in (item.node, item.use):
            if ident not in graph.node:
                yield Violation("plan", f"it names node {ident}, which is not there")
        if item.node in refused:
            name = graph.node[item.node].name
            yield Violation(name, f"it cannot be computed again: {refused[item.node]}")


def _offloads(graph: Graph, plan: Plan) -> Iterator[Violation]:
    if list(plan.offload) != sorted(set(plan.offload)):
        yield Violation("plan", "its offloads are not sorted, or one is there twice")
    if list(plan.compress) != sorted(set(plan.compress)):
        yield Violation("plan", "its packed values are not sorted, or one is there twice")
    for packed in plan.compress:
        if any(i not in graph.node for i in (packed.value.node, packed.after, packed.use)):
            yield Violation("plan", f"a packed {packed.value} names a node that is not there")
        elif packing(graph, packed.value) is None:
            yield Violation("plan", f"it packs {packed.value}, which cannot be packed without loss")
    for item in plan.offload:
        places = (item.after, item.gone, item.fetch, item.use)
        if any(ident not in graph.node and ident != item.value.node for ident in places):
            yield Violation("plan", f"an offload of {item.value} names a node that is not there")
        elif item.value not in set(graph.storages()):
            yield Violation("plan", f"it offloads {item.value}, which owns no bytes")


def _order(graph: Graph, order: Sequence[int]) -> Iterator[Violation]:
    steps = [node for node in graph.nodes if not node.is_view]
    if sorted(order) != sorted(node.id for node in steps):
        yield Violation("order", "it does not name every node that is no view once")
        return
    place = {ident: at for at, ident in enumerate(order)}
    for node in steps:
        for maker in makers(graph, node):
            if place[maker] > place[node.id]:
                yield Violation(node.name, f"it stands before {graph.node[maker].name}, which it reads")
    for before, after in pairwise(node for node in steps if node.op.random):
        if place[before.id] > place[after.id]:
            yield Violation(after.name, f"it draws before {before.name}, which draws first in the program")
