"""What a legal node of control flow is, and how its graphs are written."""

from dataclasses import replace

import pytest

from peakfold.errors import UsageError
from peakfold.ir.control import COND, WHILE, nested, planned_bodies
from peakfold.ir.graph import Graph, Input, Node, Op, Output, State, Value
from peakfold.ir.text import parse_graph, print_graph
from peakfold.ir.types import tensor
from peakfold.plan.check import check_graph

TWO = tensor(2)


def side(*ops, returned=None):
    """A graph of one input and a chain of operators."""
    nodes = tuple(
        Node(1 + at, f"{op}_{at}", Op(f"aten.{op}.default"), (Value(at),), (), (TWO,), (None,))
        for at, op in enumerate(ops)
    )
    value = Value(len(ops) if returned is None else returned)
    return Graph((Input(0, "x", "batch", TWO),), nodes, (Output("out.0", value),))


def question():
    more = Node(1, "more", Op("aten.any.default"), (Value(0),), (), (tensor(dtype="bool"),), (None,))
    return Graph((Input(0, "x", "batch", TWO),), (more,), (Output("out.0", Value(1)),))


def program(op, *bodies):
    given = Input(0, "p", "batch", tensor(dtype="bool")), Input(1, "x", "batch", TWO)
    args = (Value(0), Value(1)) if op == COND else (Value(1),)
    node = Node(2, "y", Op(op), args, (), (TWO,), (None,), bodies=bodies)
    return Graph(given, (node,), (Output("y", Value(2)),))


def whats(graph):
    return [violation.what for violation in check_graph(graph)]


def test_branches_and_loops_are_legal_and_read_back():
    inner = program(COND, side("exp"), side("neg", "exp"))
    (node,) = inner.nodes
    deep = replace(side("exp"), nodes=(replace(node, id=1, args=(Value(0), Value(0))),))
    for graph in (inner, program(WHILE, question(), side("exp")), program(COND, deep, side("exp"))):
        assert parse_graph(print_graph(graph)) == graph
    assert whats(inner) == whats(program(WHILE, question(), side("exp"))) == []
    assert len(list(nested(program(COND, deep, side("exp"))))) == 5


@pytest.mark.parametrize(
    ("graph", "what"),
    [
        (program(COND, side("exp")), "it has 1 graphs, and peakfold.cond has 2"),
        (program("aten.exp.default", side("exp")), "it has 1 graphs, and aten.exp.default has 0"),
        (
            program(COND, side("exp"), side()),
            "an output of its graph 'else' shares its storage with an input or another output",
        ),
        (
            program(COND, replace(side("exp"), inputs=()), side("exp")),
            "the inputs of its graph 'then' are not of the types of its operands",
        ),
        (
            program(COND, replace(side("exp"), state=(State(0, Value(1)),)), side("exp")),
            "its graph 'then' has state",
        ),
        (
            program(WHILE, side("exp"), side("exp")),
            "its graph 'test' does not return what the node gives out",
        ),
        (
            program(COND, side("exp"), replace(side("exp"), outputs=())),
            "its graph 'else' does not return what the node gives out",
        ),
    ],
)
def test_what_is_wrong_with_a_node_is_said(graph, what):
    assert what in whats(graph)


def test_what_is_wrong_inside_is_said_with_the_node():
    wrong = replace(side("exp"), nodes=(replace(side("exp").nodes[0], args=(Value(9),)),))
    found = [str(violation) for violation in check_graph(program(COND, wrong, side("exp")))]
    assert "y, exp_0: it reads Value(node=9, index=0), which nothing above it makes" in found


def test_the_digest_covers_the_graphs_inside():
    graphs = [program(COND, side("exp"), side(op)) for op in ("exp", "neg")]
    assert graphs[0].digest != graphs[1].digest
    assert graphs[0].digest == program(COND, side("exp"), side("exp")).digest


def test_a_pass_leaves_what_it_carries_in_place():
    (node,) = program(WHILE, question(), side("exp")).nodes
    test, body = planned_bodies(node)
    assert test == node.bodies[0]
    assert body.state == (State(0, Value(1)),)
    assert body.outputs == ()


def test_a_graph_above_all_nodes_is_refused():
    text = print_graph(program(COND, side("exp"), side("neg")))
    lines = text.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("  %2"))
    with pytest.raises(UsageError) as caught:
        parse_graph("\n".join(lines[:at] + lines[at + 1 :]))
    assert "a graph stands before the first node" in str(caught.value)
    assert f"line {at + 1}" in caught.value.where


def test_an_error_inside_of_a_graph_names_its_line():
    text = print_graph(program(COND, side("exp"), side("neg")))
    text = text.replace("aten.neg.default(%x)", "aten.neg.default(%q)")
    line = 1 + next(at for at, line in enumerate(text.splitlines()) if "%q" in line)
    with pytest.raises(UsageError, match="this value is not known here") as caught:
        parse_graph(text)
    assert caught.value.where.startswith(f"line {line}, column ")
