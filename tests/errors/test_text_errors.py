"""What a graph or plan text may not say, and what is answered."""

from dataclasses import replace

import pytest

from peakfold.cost.costs import Costs
from peakfold.errors import PlanError, UsageError
from peakfold.ir.graph import Graph, Input, Node, Op, Origin, Output, State, Value
from peakfold.ir.plan import Plan, Recompute
from peakfold.ir.text import parse_graph, parse_plan, print_graph
from peakfold.ir.types import ScalarType, tensor
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.lower import lower_tables

FORWARD, BACKWARD, UPDATE = (Origin("m", "model.py:1", phase) for phase in ("forward", "backward", "update"))


def node(ident, name, op, args, origin=FORWARD, alias=None, pure=True, kind=None):
    kind = kind or tensor(4)
    return Node(ident, name, Op(op, pure), args, (), (kind,), (alias,), None, origin)


def step_graph() -> Graph:
    """Two layers, a loss, backward and one update."""
    x, w, lr = (
        Input(0, "x", "batch", tensor(4)),
        Input(1, "w", "parameter", tensor(4)),
        Input(2, "lr", "scalar", ScalarType("float")),
    )
    nodes = (
        node(10, "layer.0.gelu", "aten.gelu.default", (Value(0),)),
        node(11, "layer.1.gelu", "aten.gelu.default", (Value(10),)),
        node(12, "layer.1.view", "aten.view.default", (Value(11), (4,)), alias=Value(11)),
        node(13, "log", "custom.log.default", (Value(11),), pure=False),
        node(14, "loss", "aten.sum.default", (Value(12),), kind=tensor()),
        node(15, "layer.1.back", "aten.mul.Tensor", (Value(11), Value(10)), BACKWARD),
        node(16, "w.new", "aten.add.Tensor", (Value(1), Value(15)), UPDATE),
    )
    return Graph((x, w, lr), nodes, (Output("loss", Value(14)),), (State(1, Value(16)),))


HEAD = "peakfold plan 1\n"


def refuse(text: str) -> str:
    with pytest.raises(PlanError) as caught:
        parse_plan(text, step_graph())
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (
            "recompute layer.0.gelo before layer.1.back",
            "no node has this name|perhaps layer.0.gelu|column 11",
        ),
        ("recompute x before layer.1.back", "an input of the graph is no node"),
        ("recompute layer.1.view before layer.1.back", "layer.1.view: it is a view"),
        ("recompute loss before layer.1.back", "loss: the program returns it"),
        ("recompute log before layer.1.back", "log: custom.log.default does more than compute its result"),
        ("recompute w.new before layer.1.back", "w.new: it updates state, once"),
        ("recompute layer.1.back before w.new", "layer.1.back: w.new reads it to update state"),
        ("recompute layer.1.gelu before layer.0.gelu", "a recompute must stand before a later node"),
        ("recompute layer.0.gelu before layer.*", "one node is wanted here|layer.* fits"),
        ("recompute layer.0.gelu before layer.1.view", "a view is never a step"),
        ("recompute layer.0.gelu", "'before' is missing|the end of the line"),
        ("recompute", "a name is missing"),
        (
            "recompute layer.0.gelu before backward now",
            "there is more on the line than belongs there|got: now",
        ),
        ("recompute layer.0.gelu before backward and keep", "'drop' is missing|got: keep"),
        (
            "recomputes layer.0.gelu",
            "this is no decision|update, reuse, recompute, offload, move or split|got: recomputes",
        ),
        ("update never", "update cannot be this|got: never|after everything else"),
        ("reuse nothing\nreuse nothing", "this is decided twice|line 3, column 1"),
        ("move layer.0.gelu before layer.0.gelu", "a node cannot stand before itself"),
        ("move layer.1.view to the end", "a view is never a step"),
        ('recompute "layer.0.gelu before x', "a character that does not belong here"),
        (
            "recompute layer.0.gelu before backward\n"
            "recompute layer.0.* before backward and drop it in between",
            "an earlier line says the opposite of the same gap|line 3",
        ),
    ],
)
def test_a_plan_line_is_refused_with_the_reason(line, answer):
    said = refuse(HEAD + line + "\n")
    for part in answer.split("|"):
        assert part in said


def test_the_whole_text_of_a_refusal():
    assert refuse(HEAD + "recompute   layer.0.gelo before backward   # typo\n") == (
        "plan: no node has this name\n"
        "  at: line 2, column 13: recompute   layer.0.gelo before backward   # typo\n"
        "  expected: perhaps layer.0.gelu, layer.1.gelu\n"
        "  got: layer.0.gelo\n"
        "  next: put the line right, or take it out; docs/plan-format.md says what a plan may say"
    )


def moving_graph() -> Graph:
    """Two chains: one through a view, one of random operators."""
    x = Input(0, "x", "batch", tensor(4))
    drawn = [
        replace(node(13 + at, f"drop.{at}", "aten.bernoulli.p", (Value(0),), pure=False), stream=at)
        for at in range(2)
    ]
    drawn = [replace(one, op=replace(one.op, random=True)) for one in drawn]
    nodes = (
        node(10, "a", "aten.exp.default", (Value(0),)),
        node(11, "a.view", "aten.view.default", (Value(10), (4,)), alias=Value(10)),
        node(12, "b", "aten.neg.default", (Value(11),)),
        *drawn,
        node(15, "c", "aten.add.Tensor", (Value(12), Value(10))),
    )
    outputs = tuple(Output(name, Value(at)) for name, at in (("c", 15), ("d", 13), ("e", 14)))
    return Graph((x,), nodes, outputs)


@pytest.mark.parametrize(
    ("moves", "broken", "by", "hint"),
    [
        ("move c before b", "c before b, which it reads", 2, "move c before a node behind b, or b before it"),
        (
            "move b to the end",
            "c before b, which it reads",
            2,
            "move b before c or what is above it, or c behind it",
        ),
        (
            "move c to the end\nmove b before a",
            "b before a, of which it reads the view a.view",
            3,
            "move b before a node behind a, or a before it",
        ),
        (
            "move a to the end\nmove c before drop.0",
            "b before a, of which it reads the view a.view",
            2,
            "move a before b or what is above it, or b behind it",
        ),
        (
            "move drop.1 before a",
            "drop.1 before drop.0, which draws its random numbers first",
            2,
            "move drop.1 before a node behind drop.0, or drop.0 before it",
        ),
    ],
)
def test_a_move_that_may_not_be_names_both_nodes_and_the_reason(moves, broken, by, hint):
    with pytest.raises(PlanError) as caught:
        parse_plan(HEAD + moves + "\n", moving_graph())
    early, late = broken.split(",")[0].split(" before ")
    lines = f"{HEAD}{moves}".splitlines()
    assert str(caught.value) == (
        f"plan: the moves put {broken}\n"
        f"  at: line {by}, column 6: {lines[by - 1]}\n"
        f"  expected: {late} before {early}\n"
        f"  got: {early} before {late}\n"
        f"  next: {hint}; or take the line out"
    )


def test_moves_that_are_right_together():
    """Between them, the order is one that may not be."""
    graph = moving_graph()
    moved = parse_plan(HEAD + "move drop.1 before a\nmove drop.0 before drop.1\n", graph)
    assert moved.order == (13, 14, 10, 12, 15)


def test_an_order_given_as_numbers_names_both_nodes_and_the_reason():
    graph = moving_graph()
    tables = tabulate(graph, Costs({}, {}))
    with pytest.raises(PlanError, match="the order has c before b, which it reads"):
        lower_tables(tables, Plan(graph.digest, order=(10, 15, 12, 13, 14)))


def test_a_plan_for_another_graph_says_what_differs():
    said = refuse("peakfold plan 1 for graph 00ff (9 nodes, 3 inputs, 1 state)\n")
    assert "the plan is for another graph" in said
    assert "graph 00ff: 9 nodes, 3 inputs, 1 state" in said
    assert f"graph {step_graph().digest}: 7 nodes, 3 inputs, 1 state" in said
    same = refuse("peakfold plan 1 for graph 00ff (7 nodes, 3 inputs, 1 state)\n")
    assert "as many nodes, but other operators, shapes, dtypes or constants" in same


@pytest.mark.parametrize("text", ["", "# nothing\n", "peakfold plan 2\n", "hello\n", "\0\n"])
def test_what_is_no_plan(text):
    assert "this is no plan of peakfold, or one of another version" in refuse(text)


def test_patterns_and_backward():
    def recompute(line):
        return parse_plan(HEAD + line, step_graph()).recompute

    both = (Recompute(10, 15), Recompute(11, 15))
    assert recompute("recompute layer.*.gelu for its backward") == both
    assert recompute("recompute layer[0:2].gelu before backward") == both
    assert recompute("recompute layer.?.gelu before layer.1.back") == both
    assert recompute("recompute layer.* before backward") == both, "views in a pattern are passed over"
    assert recompute('recompute "layer.0.gelu" before backward and drop it in between') == (
        Recompute(10, 15, False),
    )


GRAPH = print_graph(step_graph())


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("peakfold graph 1", "peakfold graph 2", "this is no graph of peakfold, or one of another version"),
        ("(%layer.0.gelu)", "(%layer.9.gelu)", "this value is not known here|%layer.9.gelu|column"),
        ("(%layer.0.gelu)", "(%layer.0.gelu:3)", "this value is not known here|%layer.0.gelu:3"),
        ("(%layer.0.gelu)", "(%layer.0.gelu", "',' is missing"),
        ("(%layer.0.gelu)", "(huh)", "this is no argument|got: huh"),
        (": f32[4]", ": f33[4]", "this is no type|got: f33"),
        (": f32[4]", ": f32[4] {1, 1}", "a stride is missing|got: 2|1, one a dimension"),
        ("%11 layer", "%10 layer", "this id is there already"),
        ("%11 layer", "%x layer", "this is no id"),
        ("nodes", "knots", "this is no section of a graph|inputs, nodes, outputs or state"),
        ("parameter", "weight", "this is no kind of input|got: weight"),
        ("; impure", "; odd", "this is no fact about a node"),
        ("m backward", "m sideways", "this is no phase|forward, backward, update"),
        ("%w <-", "%loss <-", "only an input is state"),
        ("= aten.sum", "aten.sum", "'=' is missing"),
        ("= aten.sum", "= $", "a character that does not belong here|got: $"),
    ],
)
def test_a_graph_line_is_refused_with_the_reason(old, new, answer):
    assert old in GRAPH
    with pytest.raises(UsageError) as caught:
        parse_graph(GRAPH.replace(old, new, 1))
    said = str(caught.value)
    assert "line" in said
    for part in answer.split("|"):
        assert part in said


@pytest.mark.parametrize(
    "text", ["", "hello", "  %0 x : f32[2] batch", "peakfold graph 1\n  %0 x : f32[2] batch"]
)
def test_what_is_no_graph(text):
    with pytest.raises(UsageError):
        parse_graph(text)
