"""What prints is read back, equal in every field."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import NAMES, any_graphs, plans, runnable_graphs

from peakfold.ir.text import parse_graph, parse_plan, print_graph, print_plan
from peakfold.ir.text.plan_print import moves


def bare_bits(graph):
    """Types as well as values, so that 1, 1.0 and True, or 0.0 and -0.0, are told apart."""
    return repr(graph)


@settings(max_examples=200, deadline=None)
@given(any_graphs())
def test_a_graph_is_read_back(graph):
    back = parse_graph(print_graph(graph))
    assert back == graph
    assert bare_bits(back) == bare_bits(graph)
    assert print_graph(back) == print_graph(graph)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_plan_is_read_back(data):
    graph = renamed(data.draw, data.draw(runnable_graphs(max_nodes=5)))
    plan = data.draw(plans(graph))
    notes = dict.fromkeys(plan.recompute, "saves 3 MB # costs 1 ms")
    assert parse_plan(print_plan(plan, graph), graph) == plan
    assert parse_plan(print_plan(plan, graph, notes), graph) == plan


def renamed(draw, graph):
    """The same graph with odd names, each its own."""
    names = draw(st.lists(NAMES, min_size=len(graph.nodes), max_size=len(graph.nodes), unique=True))
    nodes = tuple(replace(node, name=name) for node, name in zip(graph.nodes, names, strict=True))
    return replace(graph, nodes=nodes)


@given(st.permutations(range(8)))
def test_moves_are_fewest_and_turn_one_order_into_the_other(order):
    own = list(range(8))
    done = list(moves(own, order))
    for node, before in done:
        own.remove(node)
        own.insert(len(own) if before is None else own.index(before), node)
    assert own == list(order)
    assert len(done) == 8 - longest_increasing(order)


def longest_increasing(numbers):
    """Brute force: over every subset."""
    best = 0
    for bits in range(1 << len(numbers)):
        chosen = [n for i, n in enumerate(numbers) if bits >> i & 1]
        if chosen == sorted(chosen):
            best = max(best, len(chosen))
    return best
