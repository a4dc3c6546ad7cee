"""Regions become loops: what the two graphs are, what is refused, what text says of it; no torch."""

import re
from dataclasses import replace

import pytest

from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError, PlanError
from peakfold.ir.graph import Graph, Input, Node, Op, Origin, Output, State, Value
from peakfold.ir.plan import Anchor, Plan, Recompute, Region, Run
from peakfold.ir.text import parse_plan, print_plan
from peakfold.ir.types import tensor
from peakfold.plan.check import check_graph, require_legal
from peakfold.plan.fission import derive as derive_module
from peakfold.plan.fission.derive import Splitter, derive, derived
from peakfold.plan.fission.derived import LOOP
from peakfold.plan.fission.program import outer_plan, planned
from peakfold.plan.fission.solve import Effort, Solver
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate

ROWS = 12


def node(ident: int, name: str, op: str, args: tuple, kind, alias=None, phase="forward", **flags) -> Node:
    return Node(ident, name, Op(op, **flags), args, (), (kind,), (alias,), None, Origin(phase=phase))


def chain(rows: int = ROWS, middle: Node | None = None) -> Graph:
    """``y = relu(x @ w)``, ``w -= relu(y)' @ x``: a product, a sum over the rows, and an update."""
    given = (Input(0, "x", "batch", tensor(rows, 8)), Input(1, "fc.weight", "parameter", tensor(8, 4)))
    wide = tensor(rows, 4)
    nodes = (
        node(10, "fc.mm", "aten.mm.default", (Value(0), Value(1)), wide),
        node(11, "act.relu", "aten.relu.default", (Value(10),), wide),
        *(() if middle is None else (middle,)),
        node(12, "act.exp", "aten.exp.default", (Value(11 if middle is None else middle.id),), wide),
        node(13, "x.t", "aten.t.default", (Value(0),), tensor(8, rows, strides=(1, 8)), Value(0), "backward"),
        node(14, "fc.backward.mm", "aten.mm.default", (Value(13), Value(12)), tensor(8, 4), None, "backward"),
        node(15, "fc.update.sub", "aten.sub.Tensor", (Value(1), Value(14)), tensor(8, 4), phase="update"),
    )
    return Graph(given, nodes, (Output("y", Value(11)),), (State(1, Value(15)),))


def region(*ids: int, parts: int = 4, **more) -> Region:
    return Region("batch", parts, tuple(Run(ident) for ident in ids), **more)


WHOLE = region(10, 11, 12, 14)


def test_a_region_is_one_node_outside_and_a_graph_inside():
    found = derive(chain(), (WHOLE,))
    (body,) = found.bodies.values()
    assert [item.op.name for item in found.graph.nodes] == [LOOP, "aten.sub.Tensor"]
    assert not check_graph(found.graph)
    assert not check_graph(body.graph)
    assert (body.size, body.parts, list(body.starts)) == (3, 4.0, [0, 3, 6, 9])
    assert [body.name_of(index) for index in range(2)] == ["act.relu", "fc.backward.mm"]
    assert body.initial == ("empty", "zeros")


def test_a_product_adds_to_its_accumulator():
    (body,) = derive(chain(), (WHOLE,)).bodies.values()
    product = body.graph.node[14]
    assert product.op.name == "aten.addmm.default"
    assert product.args[0] == Value(body.results[1])
    assert body.graph.node[10].types == (tensor(3, 4),)


def test_bytes_of_a_loop_are_those_of_one_part():
    graph = chain()
    found = derive(graph, (WHOLE,))
    nest = planned(found, outer_plan(Plan(graph.digest), found), lambda _: Costs({10: 1.0}, {11: 7}))
    (repeat,) = nest.loops.values()
    x, weight, y = 12 * 8 * 4, 8 * 4 * 4, 12 * 4 * 4
    part = 3 * 4 * 4
    assert repeat.nest.timeline.resident == x + weight + y + weight
    assert repeat.workspace == part + 7  # relu and exp are written over the product
    assert nest.timeline.peak == x + weight + y + weight + repeat.workspace
    assert repeat.seconds == pytest.approx(4 * repeat.nest.timeline.seconds)
    for inner in nest.nests():
        require_legal(inner.graph, inner.schedule)


def test_a_smaller_last_part_counts_as_what_it_is():
    (body,) = derive(chain(11), (WHOLE,)).bodies.values()
    assert (body.size, body.parts, list(body.starts)) == (3, 11 / 3, [0, 3, 6, 9])


def test_what_is_computed_again_inside_is_read_inside_alone():
    graph = chain()
    first = region(10, 11)
    second = Region("batch", 2, (Run(10, 1), Run(11, 1), Run(12), Run(14)))
    found = derive(graph, (first, second))
    forward, backward = found.bodies.values()
    assert [item.name for item in backward.graph.nodes if item.name.endswith("again")] == [
        "fc.mm.again",
        "act.relu.again",
    ]
    assert forward.loop.id not in {value.node for value in backward.loop.inputs}
    assert {out.value for out in found.graph.outputs} == {Value(forward.loop.id)}


def test_bodies_do_not_depend_on_other_regions():
    alone = derive(chain(), (region(12, 14),)).bodies.values()
    _, second = derive(chain(), (region(10), region(12, 14))).bodies.values()
    assert next(iter(alone)).graph == second.graph


RANDOM = node(20, "drop", "aten.bernoulli.p", (Value(11), 0.5), tensor(ROWS, 4), random=True)
NUMBER = node(21, "barrier", "aten.sort.default", (Value(11), 0), tensor(ROWS, 4))


@pytest.mark.parametrize(
    ("graph", "regions", "reason"),
    [
        (chain(), (region(10, parts=5),), "12 places in parts of 3 are 4 parts"),
        (chain(), (region(10, parts=13),), "batch has 12 places"),
        (chain(), (region(10, parts=1),), "batch has 12 places"),
        (chain(), (region(),), "it names no node"),
        (chain(), (region(99),), "it names node 99, which is not there"),
        (chain(), (region(13),), "x.t: it is a view"),
        (chain(), (region(10), region(10, 11)), "fc.mm: run 0 is in two regions"),
        (chain(), (replace(region(10), axis="height"),), "no axis has the name 'height'"),
        (chain(1), (region(10, parts=2),), "got: the batch is 1 long, and cannot be divided"),
        (chain(), (region(15),), "nothing in the region runs along batch"),
        (chain(middle=RANDOM), (region(20),), "drop: it draws random numbers"),
        (
            chain(middle=RANDOM),
            (region(10, 11, 12),),
            "reads what a region makes, and a region reads that",
        ),
        (chain(middle=NUMBER), (region(21),), "cannot be split along it"),
    ],
)
def test_what_is_no_region_is_refused_with_the_reason(graph, regions, reason):
    with pytest.raises(PlanError, match=re.escape(reason)):
        derive(graph, regions)


@pytest.mark.parametrize("rows", [2, 7, 9, 12])
def test_a_number_of_parts_that_does_not_come_out_is_told_one_that_does(rows):
    even = {-(-rows // size) for size in range(1, rows)}
    for parts in range(rows + 2):
        if parts in even:
            (body,) = derive(chain(rows), (region(10, parts=parts),)).bodies.values()
            assert len(list(body.ends)) == parts
            continue
        with pytest.raises(PlanError) as caught:
            derive(chain(rows), (region(10, parts=parts),))
        expected, hint = caught.value.expected, caught.value.hint
        if parts in range(2, rows + 1):
            near = int(expected.removesuffix(" parts"))
            assert near in even
            assert hint == f"split it into {near}, or take it out of the plan"
        else:
            assert expected == f"2 to {rows} parts"
            assert hint == "split it into another number of parts, or take it out of the plan"


def test_a_region_is_not_nested_in_parts_of_several_sizes():
    plan = Plan("", regions=(Region("features", 2, (Run(10),), None, Anchor(Value(10), 1)),))
    derive(chain(), (replace(WHOLE, plan=plan),))
    with pytest.raises(PlanError, match="parts of 3 and one of 2"):
        derive(chain(11), (replace(WHOLE, plan=plan),))


# --- text ------------------------------------------------------------------------------------------


def test_a_plan_with_regions_is_printed_and_read_back():
    graph = chain()
    (body,) = derive(graph, (region(12, 14, parts=2),)).bodies.values()
    inner = Plan(
        body.part.digest,
        regions=(Region("features", 2, (Run(12),), None, Anchor(Value(12), 1)),),
        updates="last",
    )
    plan = Plan(
        graph.digest,
        regions=(region(10, 11, anchor=Anchor(Value(0), 0)), region(12, 14, parts=2, plan=inner)),
    )
    text = print_plan(plan, graph, splitter=Splitter())
    assert text.splitlines()[3:] == [
        "split       batch into 4 at x dim 0 over fc.mm..act.relu",
        "split       batch into 2 over act.exp..fc.backward.mm",
        "    update      after everything else",
        "    split       features into 2 at act.exp dim 1 over act.exp",
    ]
    assert parse_plan(text, graph, Splitter()) == plan


def counted(monkeypatch, name: str) -> list[object]:
    """Note each call of what the module of the splitter calls so."""
    calls: list[object] = []
    real = getattr(derive_module, name)

    def noted(*args):
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(derive_module, name, noted)
    return calls


@pytest.mark.parametrize(("name", "times"), [("prepare", 1), ("derive", 5)])
def test_plans_that_split_the_same_share_its_graphs(name, times, monkeypatch):
    graph = chain()
    (body,) = derive(graph, (region(10, 11),)).bodies.values()
    other = region(10, 11, parts=2)
    decided = [Plan(body.part.digest, updates="last"), Plan(body.part.digest, reuse=False)]
    nested = Plan(body.part.digest, regions=(Region("features", 2, (Run(11),), None, Anchor(Value(11), 1)),))
    plans = [Plan(graph.digest, regions=(one,)) for one in (region(10, 11), other)]
    plans += [Plan(graph.digest, regions=(region(10, 11, plan=plan),)) for plan in (*decided, nested)]
    alone = [print_plan(plan, graph, splitter=Splitter()) for plan in plans]
    calls, splitter = counted(monkeypatch, name), Splitter()
    assert [print_plan(plan, graph, splitter=splitter) for plan in plans] == alone
    assert [parse_plan(text, graph, splitter) for text in alone] == plans
    assert len(calls) == times


def test_what_is_computed_again_is_said():
    plan = Plan(chain().digest, regions=(Region("batch", 2, (Run(10, 1), Run(11, 1), Run(12), Run(14))),))
    text = print_plan(plan, chain(), splitter=Splitter())
    assert "over act.exp..fc.backward.mm, again fc.mm..act.relu" in text
    assert parse_plan(text, chain(), Splitter()) == plan


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("split batch into four over fc.mm", "a whole number is missing"),
        ("split batch into 1 over fc.mm", "so many parts are none"),
        ("split batch into 4", "'over' is missing"),
        ("split batch into 4 over", "a name is missing"),
        ("split batch into 4 over fc.mm..", "a name is missing"),
        ("split batch into 4 over fc.mm,", "a name is missing"),
        ("split batch into 4 over act.exp..fc.mm", "a range ends before it begins"),
        ("split batch into 4 over fc.nn", "no node has this name"),
        ("split batch into 4 over x.t", "a view is never a step"),
        ("split batch into 4 over fc.mm at x dim 0", "there is more on the line"),
        ("split batch into 5 over fc.mm", "12 places in parts of 3 are 4 parts"),
        ("    update after everything else\n        reuse nothing", "stands behind no split"),
    ],
)
def test_a_split_line_is_refused_with_the_reason(line, reason):
    with pytest.raises(PlanError, match=re.escape(reason)):
        parse_plan(f"peakfold plan 1\n{line}", chain(), Splitter())


def test_regions_need_a_splitter():
    with pytest.raises(PlanError, match="regions cannot be read here"):
        parse_plan("peakfold plan 1\nsplit batch into 4 over fc.mm", chain())


# --- both planned together -------------------------------------------------------------------------


def deep(depth: int = 6) -> Graph:
    """A chain of exponentials whose backward reads them all: recomputation pays."""
    given = (Input(0, "x", "batch", tensor(ROWS, 64)),)
    nodes, last = [], Value(0)
    for level in range(depth):
        nodes.append(node(100 + level, f"f{level}", "aten.exp.default", (last,), tensor(ROWS, 64)))
        last = Value(100 + level)
    for level in reversed(range(depth)):
        args = (last, Value(100 + level))
        nodes.append(
            node(200 + level, f"b{level}", "aten.mul.Tensor", args, tensor(ROWS, 64), phase="backward")
        )
        last = Value(200 + level)
    return Graph(given, tuple(nodes), (Output("y", last),))


def test_bodies_and_outside_are_planned_within_the_budget():
    graph = deep()
    seconds = dict.fromkeys(graph.node, 1.0)
    solver = Solver(graph, lambda _: Costs(seconds, {}), Effort(5.0, iterations=4000))
    free = solver.solve((region(*graph.node, parts=3),))
    tight = solver.solve((region(*graph.node, parts=3),), memory=free.peak_bytes - 3 * 4 * 64 * 4)
    assert tight.peak_bytes <= free.peak_bytes - 3 * 4 * 64 * 4
    assert tight.seconds > free.seconds
    nest = solver.nest(tight.plan)
    assert (nest.timeline.peak, nest.timeline.seconds) == (tight.peak_bytes, pytest.approx(tight.seconds))
    assert isinstance(tight.plan.regions[0].plan, Plan)
    assert all(isinstance(item, Recompute) for item in tight.plan.regions[0].plan.recompute)


def test_a_budget_below_every_plan_is_refused_with_the_lowest_peak():
    graph = deep()
    solver = Solver(graph, lambda _: Costs(dict.fromkeys(graph.node, 1.0), {}), Effort(5.0, iterations=4000))
    with pytest.raises(InfeasibleError) as caught:
        solver.solve((region(*graph.node, parts=3),), memory=graph.nbytes(Value(0)))
    assert caught.value.lowest_peak_bytes > graph.nbytes(Value(0))


def test_without_regions_the_graph_is_planned_as_it_is():
    graph = deep()
    costs = Costs(dict.fromkeys(graph.node, 1.0), {})
    found = Solver(graph, lambda _: costs, Effort(5.0, iterations=100)).solve(())
    assert derived(graph, found.plan).graph is graph
    assert found.peak_bytes == simulate(graph, costs, lower(graph, Plan(graph.digest))).peak


def test_the_same_seed_and_iterations_give_the_same_plan():
    graph = deep()
    costs = Costs(dict.fromkeys(graph.node, 1.0), {})
    limit = simulate(graph, costs, lower(graph, Plan(graph.digest))).peak * 6 // 10
    effort = Effort(60.0, iterations=2000, seed=5)
    one, two = (
        Solver(graph, lambda _: costs, effort).solve((region(*graph.node, parts=3),), memory=limit)
        for _ in range(2)
    )
    assert one == two


def test_an_axis_that_is_named_by_what_a_view_makes_is_read_again():
    graph = chain()
    plan = Plan(graph.digest, regions=(replace(WHOLE, anchor=Anchor(Value(13), 1)),))
    text = print_plan(plan, graph, splitter=Splitter())
    assert "at x.t dim 1" in text
    assert parse_plan(text, graph, Splitter()) == plan
