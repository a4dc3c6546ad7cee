"""Matching, driving, refusing and accounting, on small graphs without torch."""

import pytest
from hypothesis import given, settings
from tests.strategies import runnable_graphs

from peakfold.cost.roofline import CPU, seconds_of
from peakfold.graph.rewrite import grow
from peakfold.graph.rewrite.account import Account
from peakfold.graph.rewrite.candidate import Candidate, candidate
from peakfold.graph.rewrite.change import CYCLE, Change, Refusal, apply
from peakfold.graph.rewrite.driver import Limits, Terms, neighbours, search
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.match import Matcher
from peakfold.graph.rewrite.passes.common import CommonSubexpressions
from peakfold.graph.rewrite.rules import hand_rules, keeps_bits
from peakfold.graph.rewrite.saturate import saturated
from peakfold.graph.rewrite.simplify import simplify
from peakfold.graph.rule import parse_rule, parse_rules, print_rules
from peakfold.graph.wl import hashed, hashed_after
from peakfold.ir.graph import Graph, Input, Node, Op, Origin, Output, Value
from peakfold.ir.types import ScalarType, tensor

N = 64


def price(graph):
    return {node.id: seconds_of(graph, node, CPU) for node in graph.nodes if not node.is_view}


def program(*calls, outputs=None, inputs=4, shape=(N, N)):
    """Return a graph of square matrices: each call is (operator, operands), ids go on from the inputs'."""
    given_inputs = tuple(Input(i, f"x{i}", "batch", tensor(*shape)) for i in range(inputs))
    nodes = []
    for ident, (op, *args) in enumerate(calls, inputs):
        values = tuple(Value(arg) if isinstance(arg, int) else arg for arg in args)
        nodes.append(Node(ident, f"n{ident}", Op(op), values, (), (tensor(*shape),), (None,)))
    last = [nodes[-1].id] if outputs is None else outputs
    return Graph(given_inputs, tuple(nodes), tuple(Output(f"y{i}", Value(i)) for i in last))


MM, ADD, EXP = "aten.mm.default", "aten.add.Tensor", "aten.exp.default"
FACTOR = parse_rule("factor: add(matmul(a, c), matmul(b, c)) => matmul(add(a, b), c) when same_shape(a, b)")


def test_a_rule_fires_through_commutativity_and_saves():
    graph = program((MM, 0, 2), (MM, 1, 2), (ADD, 5, 4))
    found = search(graph, [FACTOR], price)
    assert [step.rule for step in found.steps] == ["factor"]
    assert sorted(node.op.name for node in found.graph.nodes) == [ADD, MM]
    assert found.after < found.before
    assert found.ids.of(Value(6)) == found.graph.outputs[0].value
    assert found.ids.of(Value(4)) is None
    assert found.graph.node[found.graph.outputs[0].value.node].name == "n6"
    assert peak(found.graph) <= peak(graph)


def test_a_shared_product_is_priced_as_a_whole():
    graph = program((MM, 0, 2), (MM, 1, 2), (ADD, 4, 5), (EXP, 4), (EXP, 5), outputs=[6, 7, 8])
    found = search(graph, [FACTOR], price)
    assert found.graph is graph
    assert found.steps == ()
    assert found.account["factor"].refused == {"it costs more": 2}


def test_the_input_wins_ties():
    swap = parse_rule("swap: matmul(matmul(a, b), c) => matmul(a, matmul(b, c))")
    graph = program((MM, 0, 1), (MM, 4, 2))
    assert search(graph, [swap], price).graph is graph


def test_no_rewrite_lies_across_the_border_of_a_region():
    graph = program((MM, 0, 2), (MM, 1, 2), (ADD, 4, 5))
    found = search(graph, [FACTOR], price, terms=Terms(regions=(frozenset({4}),)))
    assert found.graph is graph
    assert found.account["factor"].refused == {"it would lie across the border of a region": 2}
    inside = search(graph, [FACTOR], price, terms=Terms(regions=(frozenset({4, 5, 6}),)))
    assert inside.steps


NEG, RELU, SUB = "aten.neg.default", "aten.relu.default", "aten.sub.Tensor"
INSIDE = parse_rule("inside: exp(a) => neg(a)")
ACROSS_IT = parse_rule("across: relu(neg(a)) => sub(a, a)")
COSTS = {EXP: 9.0, RELU: 9.0, NEG: 4.0, SUB: 1.0}


@pytest.mark.parametrize("way", [search, saturated])
@pytest.mark.parametrize(
    ("region", "after"), [((), [SUB]), ((4, 5), [SUB]), ((4,), [NEG, RELU]), ((5,), [NEG, RELU])]
)
def test_what_is_made_inside_of_a_region_is_inside_for_every_run(way, region, after):
    def by_operator(graph):
        return {node.id: COSTS[node.op.name] for node in graph.nodes}

    graph = program((EXP, 0), (RELU, 4))
    found = way(graph, [INSIDE, ACROSS_IT], by_operator, terms=Terms(regions=(frozenset(region),)))
    assert [node.op.name for node in found.graph.nodes] == after
    inside = {found.graph.node[ident].op.name for ident in found.regions[0]}
    assert inside == ({SUB} if len(region) > 1 else {NEG} if region == (4,) else {RELU} if region else set())
    again = way(found.graph, [ACROSS_IT], by_operator, terms=Terms(regions=found.regions))
    assert [node.op.name for node in again.graph.nodes] == after


@pytest.mark.parametrize(("region", "merged"), [((), True), ((4, 5), True), ((4,), False), ((5,), False)])
def test_equal_operators_are_not_one_across_a_border(region, merged):
    graph = program((EXP, 0), (EXP, 0), (SUB, 4, 5))
    found = saturated(graph, [INSIDE], price, terms=Terms(regions=(frozenset(region),)))
    assert (len(found.graph.nodes) == 2) == merged


def test_a_rewrite_that_would_make_a_cycle_is_refused():
    """What stands for a product cannot read what is computed from it."""
    graph = program((MM, 0, 1), (EXP, 4), (MM, 5, 1))
    loop = Node(9, "loop", Op(ADD), (Value(5), Value(1)), (), (tensor(N, N),), (None,))
    assert apply(graph, Change((loop,), {Value(4): Value(9)})) == CYCLE


def test_reasons_why_a_rule_does_not_fire():
    graph = program((MM, 0, 2), (MM, 1, 2), (ADD, 4, 5))
    undecided = parse_rule(f"{FACTOR} proof undecided")
    (match, *_) = Matcher(graph).matches(undecided)
    assert candidate(graph, match) == Refusal("the rule is neither proved nor refuted")
    assert isinstance(candidate(graph, match, undecided=True), Candidate)
    unknown = parse_rule("r: add(matmul(a, c), matmul(b, c)) => mystery(a, b)")
    (match, *_) = Matcher(graph).matches(unknown)
    assert candidate(graph, match) == Refusal("there is no operator for mystery")
    never = parse_rule("r: add(matmul(a, c), matmul(b, c)) => add(a, b) when dim_is(a, 0, 3)")
    (match, *_) = Matcher(graph).matches(never)
    assert candidate(graph, match) == Refusal("not dim_is(a, 0, 3)")


def test_the_update_is_not_mixed_with_what_comes_before():
    graph = program((MM, 0, 2), (MM, 1, 2), (ADD, 4, 5))
    nodes = (*graph.nodes[:2], Node(6, "n6", Op(ADD), (Value(4), Value(5)), (), (tensor(N, N),), (None,),
                                    origin=Origin(phase="update")))  # fmt: skip
    mixed = Graph(graph.inputs, nodes, graph.outputs)
    (match, *_) = Matcher(mixed).matches(FACTOR)
    assert candidate(mixed, match) == Refusal("it would mix the update with what comes before it")


def test_rules_that_do_not_end_are_stopped_and_named():
    grow = [parse_rule("grow: exp(a) => exp(neg(neg(a)))")]
    graph = program((EXP, 0))
    found = search(graph, grow, lambda g: {}, limits=Limits(states=5), terms=Terms(may_raise_peak=True))
    assert found.stop == "limit of 5 states; grow fired most"
    assert found.graph is graph


@pytest.mark.parametrize(("room", "limit"), [(400, "4 rounds"), (7, "10 nodes")])
def test_saturation_by_rules_that_do_not_end_is_stopped_and_they_are_named(room, limit, monkeypatch):
    monkeypatch.setattr(grow, "ROOM", room)
    rules = [parse_rule("grow: exp(a) => neg(exp(neg(a)))"), parse_rule("once: exp(a) => relu(exp(a))")]
    found = saturated(program((EXP, 0)), rules, lambda g: {})
    assert found.stop == f"limit of {limit}; grow made most"


def test_the_account_adds_up_to_the_wall_time():
    graph = program((MM, 0, 2), (MM, 1, 2), (ADD, 5, 4))
    account = search(graph, hand_rules(), price).account
    assert sum(entry.seconds for entry in account.entries.values()) == pytest.approx(
        account.seconds, rel=1e-6
    )
    assert Account().seconds >= 0


def test_neighbours_are_lazy_and_give_rule_graph_and_ids():
    graph = program((MM, 0, 2), (MM, 1, 2), (ADD, 5, 4))
    found = next(neighbours(graph, [FACTOR]))
    done = found.apply()
    assert found.rule.name == "factor"
    assert done.graph.node.keys() - graph.node.keys() == set(done.ids.new)
    assert hashed_after(hashed(graph), done.graph).value == hashed(done.graph).value != hashed(graph).value


def test_equal_nodes_become_one_unless_the_peak_would_rise():
    shape = (256, 256)
    early = [("aten.exp.default", 0), (ADD, 4, 0)]
    middle = [("aten.neg.default", 5), ("aten.neg.default", 6), (ADD, 6, 7)]
    graph = program(*early, *middle, ("aten.exp.default", 0), (ADD, 9, 8), shape=shape)
    kept = CommonSubexpressions()(graph).graph
    assert peak(kept) <= peak(graph)
    forced = CommonSubexpressions(may_raise_peak=True)(graph).graph
    assert len(forced.nodes) == len(graph.nodes) - 1
    assert peak(forced) > peak(graph)
    assert kept.digest == graph.digest


def test_draws_are_never_merged():
    draw = Op("aten.bernoulli.p", pure=False, random=True)
    nodes = tuple(
        Node(i, f"d{i}", draw, (Value(0), 0.5), (), (tensor(4),), (None,), stream=i) for i in (1, 2)
    )
    x = Input(0, "x", "batch", tensor(4))
    graph = Graph((x,), nodes, (Output("a", Value(1)), Output("b", Value(2))))
    assert simplify(graph).graph is graph


def test_rules_print_and_parse_back():
    rules = hand_rules()
    assert parse_rules(print_rules(rules)) == rules
    assert len({rule.name for rule in rules}) == len(rules)
    exact = {rule.name for rule in rules if keeps_bits(rule)}
    assert {"rectified_twice", "negated_twice", "transposed_twice"} <= exact
    assert "associate" not in exact


@settings(max_examples=50, deadline=None)
@given(runnable_graphs())
def test_the_hash_is_canonical_and_kept_up_to_date(graph):
    moved = {node.id: node.id + 1000 for node in graph.nodes}
    values = {value: Value(moved[node.id], value.index) for node in graph.nodes for value in node.outputs}
    done = apply(graph, Change())
    assert hashed_after(hashed(graph), done.graph).value == hashed(done.graph).value
    again = apply(
        graph,
        Change(
            tuple(
                Node(
                    moved[n.id],
                    f"other{n.id}",
                    n.op,
                    n.args,
                    n.kwargs,
                    n.types,
                    n.aliases,
                    n.stream,
                    n.origin,
                )
                for n in graph.nodes
                if n.op.pure
            )[:1],
            {v: values[v] for n in graph.nodes if n.op.pure for v in n.outputs}
            if sum(n.op.pure for n in graph.nodes) == 1
            else {v: values[v] for v in next((n.outputs for n in graph.nodes if n.op.pure), ())},
        ),
    )
    assert not isinstance(again, Refusal)
    assert hashed(again.graph).value == hashed(done.graph).value
    assert hashed_after(hashed(done.graph), again.graph).value == hashed(again.graph).value


@pytest.mark.parametrize("view", ["aten.view.default", "aten._unsafe_view.default"])
def test_reshaped_products_with_host_numbers_are_read(view):
    given_inputs = (Input(0, "x", "batch", tensor(2, 3)), Input(1, "lr", "scalar", ScalarType("float")))
    mul = Node(2, "mul", Op("aten.mul.Tensor"), (Value(0), Value(1)), (), (tensor(2, 3),), (None,))
    flat = Node(3, "flat", Op(view), (Value(2), (6,)), (), (tensor(6),), (Value(2),))
    graph = Graph(given_inputs, (mul, flat), (Output("y", Value(3)),))
    assert Matcher(graph).said == {}
