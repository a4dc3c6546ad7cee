"""What is small and stands at the border of a region runs once, outside."""

from peakfold.ir.graph import Graph, Input, Node, Op, Output, Value
from peakfold.ir.plan import Region, Run
from peakfold.ir.types import tensor
from peakfold.plan.fission.axes import Axes
from peakfold.plan.fission.small import outside

ROWS, WIDE = 8, 1 << 13
X, SCALE, GAIN, SCALED, SUMS, TOTAL = 0, 1, 10, 20, 30, 40


def node(ident, op, args, *shape):
    return Node(ident, f"n{ident}", Op(op), args, (), (tensor(*shape),), (None,))


def program(wide=WIDE):
    """Rows times the exponential of what each is scaled by, and the root of their sums in one number."""
    given = (Input(X, "x", "batch", tensor(ROWS, wide)), Input(SCALE, "scale", "batch", tensor(ROWS, 1)))
    nodes = (
        node(GAIN, "aten.exp.default", (Value(SCALE),), ROWS, 1),
        node(SCALED, "aten.mul.Tensor", (Value(X), Value(GAIN)), ROWS, wide),
        node(SUMS, "aten.sum.dim_IntList", (Value(SCALED), (1,)), ROWS),
        node(TOTAL, "aten.sum.default", (Value(SUMS),)),
    )
    return Graph(given, nodes, (Output("y", Value(TOTAL)),))


def left_out(graph, *ids, k=0):
    runs = tuple(Run(ident, k if ident == GAIN else 0) for ident in ids)
    region = Region("batch", 2, runs)
    states = Axes()(graph, region, frozenset(ids)).states
    return {run.node for run in outside(graph, [(runs, states)])}


def test_what_a_region_begins_or_ends_with_is_left_out():
    assert left_out(program(), GAIN, SCALED, SUMS, TOTAL) == {GAIN, TOTAL}
    assert left_out(program(), GAIN, SCALED, SUMS, TOTAL, k=1) == {GAIN, TOTAL}


def test_what_is_not_small_beside_the_rest_stays():
    assert left_out(program(wide=16), GAIN, SCALED, SUMS, TOTAL) == set()


def test_what_stands_between_two_others_stays():
    given = (Input(X, "x", "batch", tensor(ROWS, WIDE)),)
    nodes = (
        node(SUMS, "aten.sum.dim_IntList", (Value(X), (1,), True), ROWS, 1),
        node(GAIN, "aten.exp.default", (Value(SUMS),), ROWS, 1),
        node(SCALED, "aten.mul.Tensor", (Value(X), Value(GAIN)), ROWS, WIDE),
    )
    graph = Graph(given, nodes, (Output("y", Value(SCALED)),))
    assert left_out(graph, SUMS, GAIN, SCALED) == set()


def test_what_a_part_would_have_to_copy_stays():
    given = (Input(X, "x", "batch", tensor(WIDE, ROWS)), Input(SCALE, "scale", "batch", tensor(1, ROWS)))
    nodes = (
        node(GAIN, "aten.exp.default", (Value(SCALE),), 1, ROWS),
        node(SCALED, "aten.mul.Tensor", (Value(X), Value(GAIN)), WIDE, ROWS),
    )
    graph = Graph(given, nodes, (Output("y", Value(SCALED)),))
    axis = next(one for one in Axes().of(graph) if one.length == ROWS)
    runs = (Run(GAIN), Run(SCALED))
    states = Axes()(graph, Region(axis.name, 2, runs), frozenset((GAIN, SCALED))).states
    assert outside(graph, [(runs, states)]) == frozenset()
