"""Constant subgraphs: which nodes are computed once, and what that does to the peak."""

import pytest

from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.passes.once import ComputedOnce, constants, foldings, named
from peakfold.ir.graph import Graph, Input, Node, Op, Output, Value
from peakfold.ir.types import tensor

SMALL, LARGE = tensor(8), tensor(64)


def node(ident, op, *args, type=SMALL, alias=None, **options):
    return Node(ident, f"n{ident}", Op(f"aten.{op}", **options), args, (), (type,), (alias,))


def program(*nodes, out=None):
    x = Input(0, "x", "batch", SMALL)
    last = nodes[-1].id if out is None else out
    return Graph((x,), nodes, (Output("y", Value(last)),))


ARANGE = node(1, "arange.default", 8)
READER = node(9, "add.Tensor", Value(0), Value(1))


def test_what_reads_no_input_is_given_under_its_own_name():
    view = node(3, "t.default", Value(2), alias=Value(2))
    graph = program(ARANGE, node(2, "exp.default", Value(1)), view, node(4, "add.Tensor", Value(0), Value(3)))
    done = ComputedOnce()(graph)
    assert [(given.id, given.name, given.kind) for given in done.graph.inputs[1:]] == [(2, "n2", "constant")]
    assert [one.id for one in done.graph.nodes] == [3, 4]
    assert done.ids.gone == {1}
    assert done.ids.of(Value(2)) == Value(2)
    assert named(graph, ("n2",)) == done.graph
    assert ComputedOnce()(done.graph).graph == done.graph


@pytest.mark.parametrize(
    "nodes",
    [
        (node(1, "rand.default", random=True), READER),
        (node(1, "empty.memory_format"), READER),
        (node(1, "print.default", pure=False), READER),
        (node(1, "full.default", (8,), 3.0), READER),
        (node(1, "exp.default", Value(0)), READER),
        (ARANGE,),
        (ARANGE, node(2, "t.default", Value(1), alias=Value(1))),
    ],
    ids=[
        "random",
        "what memory holds",
        "effect",
        "filled",
        "reads an input",
        "returned",
        "returned as a view",
    ],
)
def test_what_is_not_constant_or_not_worth_keeping_stays(nodes):
    graph = program(*nodes)
    assert list(constants(graph)) == []
    assert ComputedOnce(may_raise_peak=True)(graph).graph is graph
    assert named(graph, ("n1",)) == graph


def test_a_single_number_is_kept():
    number = node(1, "full.default", (), 3.0, type=tensor())
    graph = program(number, READER)
    assert [given.name for given in ComputedOnce()(graph).graph.inputs] == ["x", "n1"]


def test_no_peak_is_raised_unless_asked_and_what_it_is_made_of_is_kept_instead():
    table = node(2, "outer.default", Value(1), Value(1), type=LARGE)
    early = node(3, "sum.default", Value(2), Value(0))
    widest = node(4, "cat.default", (Value(3), Value(3)), type=tensor(200)), node(5, "sum.default", Value(4))
    again = node(6, "hypot.default", Value(1), Value(1), type=LARGE)
    graph = program(ARANGE, table, early, *widest, again, node(7, "sum.default", Value(5), Value(6)))
    plain, larger = foldings(graph)
    assert [given.name for given in plain.inputs] == ["x", "n1"]
    assert peak(plain) <= peak(graph)
    assert [given.name for given in larger.inputs] == ["x", "n2", "n6"]
    assert peak(larger) > peak(graph)
