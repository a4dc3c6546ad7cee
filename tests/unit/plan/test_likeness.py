"""Bodies that are alike share what is found for one of them."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import plans, runnable_graphs

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Input, Node, Op, Output, State, Value, substitute
from peakfold.ir.types import tensor
from peakfold.plan.fission.likeness import carried, likeness
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate


def renamed(graph, ids):
    """The graph with other ids and names."""
    new = {v: Value(ids[v.node], v.index) for node in graph.nodes for v in node.outputs}
    new |= {Value(given.id): Value(ids[given.id]) for given in graph.inputs}
    nodes = (
        replace(
            node,
            id=ids[node.id],
            name=f"{node.name}.other",
            args=tuple(substitute(arg, new) for arg in node.args),
            kwargs=tuple((name, substitute(arg, new)) for name, arg in node.kwargs),
            aliases=tuple(None if one is None else new[one] for one in node.aliases),
        )
        for node in graph.nodes
    )
    return Graph(
        tuple(replace(given, id=ids[given.id], name=f"{given.name}.other") for given in graph.inputs),
        tuple(nodes),
        tuple(Output(one.name, new[one.value]) for one in graph.outputs),
        tuple(State(ids[one.input], new[one.output]) for one in graph.state),
    )


def costs_of(graph):
    return Costs({node.id: 1.0 + at for at, node in enumerate(graph.nodes)}, {})


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_plan_comes_to_the_same_in_a_graph_that_is_alike(data):
    graph = data.draw(runnable_graphs())
    plan = replace(data.draw(plans(graph)), offload=(), compress=())
    own = [*(given.id for given in graph.inputs), *(node.id for node in graph.nodes)]
    ids = dict(zip(own, data.draw(st.permutations(range(5, 5 + len(own)))), strict=True))
    other = renamed(graph, ids)
    mine, theirs = likeness(graph, costs_of(graph)), likeness(other, costs_of(other))
    assert mine.key == theirs.key
    there = carried(plan, mine, theirs, other.digest)
    one, two = (simulate(g, costs_of(g), lower(g, p)) for g, p in ((graph, plan), (other, there)))
    assert (one.peak, one.seconds) == (two.peak, two.seconds)
    assert carried(there, theirs, mine, graph.digest) == plan


def test_graphs_that_differ_in_ids_and_names_alone_are_alike():
    def chain(first: int, op: str = "aten.exp.default") -> Graph:
        x, kind = Input(first, f"x{first}", "batch", tensor(4)), tensor(4)
        node = Node(first + 7, f"y{first}", Op(op), (Value(first),), (), (kind,), (None,))
        return Graph((x,), (node,), (Output("y", Value(first + 7)),))

    def costs(graph: Graph, seconds: float = 1.0) -> Costs:
        return Costs({node.id: seconds for node in graph.nodes}, {})

    one, two = chain(0), chain(30)
    assert likeness(one, costs(one)).key == likeness(two, costs(two)).key
    assert likeness(one, costs(one)).key != likeness(two, costs(two, 2.0)).key
    assert likeness(one, costs(one)).key != likeness(chain(0, "aten.tanh.default"), costs(one)).key
