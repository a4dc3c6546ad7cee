"""Bodies that are alike, as those of all layers are: what is found for one serves all of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Node, Output, State, Value, substitute
from peakfold.ir.plan import Plan, Recompute
from peakfold.plan.fission.choices import Choice
from peakfold.plan.fission.derived import Body


@dataclass(frozen=True)
class Likeness:
    """A graph by places: another one with the same ``key`` is the same but for ids and names.

    Attributes:
        key: what is computed and what each node costs.
        ids: of the inputs and nodes, in order.
    """

    key: tuple[object, ...]
    ids: tuple[int, ...]


def likeness(graph: Graph, costs: Costs) -> Likeness:
    """Return a graph by places.

    Args:
        graph: the graph.
        costs: of its nodes.
    """
    ids = (*(given.id for given in graph.inputs), *(node.id for node in graph.nodes))
    place = {ident: at for at, ident in enumerate(ids)}
    phases = tuple(node.origin.phase for node in graph.nodes)
    taken = tuple((costs.seconds.get(node.id), costs.workspace.get(node.id)) for node in graph.nodes)
    return Likeness((_placed(graph, place).digest, phases, taken), ids)


def carried(plan: Plan, mine: Likeness, other: Likeness, digest: str) -> Plan:
    """Return a plan without regions for a graph that is alike.

    Args:
        plan: what a search without offloading found.
        mine: the graph that it is for.
        other: the graph that is alike.
        digest: of that.
    """
    there = dict(zip(mine.ids, other.ids, strict=True))
    moved = (
        Recompute(there[one.node], there[one.use], one.hold, None if one.since is None else there[one.since])
        for one in plan.recompute
    )
    order = tuple(there[ident] for ident in plan.order)
    return replace(plan, graph=digest, recompute=tuple(sorted(moved)), order=order)


def carried_over(front: Sequence[Choice], mine: Likeness, other: Likeness, body: Body) -> tuple[Choice, ...]:
    """Return the ways to run a body from those of one that is alike.

    Args:
        front: of that.
        mine: its graph.
        other: the graph of the body.
        body: without loops of its own.
    """
    digest = body.part.digest
    plans = (one.region.plan for one in front)
    moved = (None if plan is None else carried(plan, mine, other, digest) for plan in plans)
    return tuple(
        replace(one, region=replace(body.region, plan=plan)) for one, plan in zip(front, moved, strict=True)
    )


def _placed(graph: Graph, place: Mapping[int, int]) -> Graph:
    """The graph with places for ids."""
    new = dict(_values(graph, place))
    return Graph(
        tuple(replace(given, id=place[given.id]) for given in graph.inputs),
        tuple(_node(node, place, new) for node in graph.nodes),
        tuple(Output(one.name, new[one.value]) for one in graph.outputs),
        tuple(State(place[one.input], new[one.output]) for one in graph.state),
    )


def _values(graph: Graph, place: Mapping[int, int]) -> Iterator[tuple[Value, Value]]:
    for given in graph.inputs:
        yield Value(given.id), Value(place[given.id])
    for node in graph.nodes:
        for value in node.outputs:
            yield value, Value(place[node.id], value.index)


def _node(node: Node, place: Mapping[int, int], new: Mapping[Value, Value]) -> Node:
    return replace(
        node,
        id=place[node.id],
        args=tuple(substitute(arg, new) for arg in node.args),
        kwargs=tuple((name, substitute(arg, new)) for name, arg in node.kwargs),
        aliases=tuple(None if alias is None else new[alias] for alias in node.aliases),
    )
