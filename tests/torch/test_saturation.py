"""Rewritten random graphs stay equal in float64, acyclic and legal; their maps are complete."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import runnable_graphs
from tests.torch.test_rewrite import PIECES, assert_types_hold, operands

from benchmarks.fragments import Piece
from peakfold.bridge.capture import capture_inference
from peakfold.bridge.runtime.compare import error_of
from peakfold.bridge.runtime.interpret import interpret
from peakfold.bridge.runtime.retype import retyped
from peakfold.cost.roofline import CPU, seconds_of
from peakfold.graph.rewrite.cheapest import by_rules, cheapest
from peakfold.graph.rewrite.classes import Classes
from peakfold.graph.rewrite.driver import Limits, Terms, search
from peakfold.graph.rewrite.grow import ROOM, ROOM_EACH
from peakfold.graph.rewrite.improve import improved
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.rules import book_rules, hand_rules
from peakfold.graph.rewrite.saturate import saturated
from peakfold.graph.rewrite.simplify import simplify
from peakfold.graph.rule import parse_rule
from peakfold.ir.graph import Value
from peakfold.pipeline.task import Task
from peakfold.plan.check import check_graph

FREE = Terms(may_raise_peak=True, margin=-100.0)
"""What a search is to keep to that takes what costs more, too."""
SHORT = Limits(states=6, seconds=0.6)
RULES = (*hand_rules(), *book_rules())


def priced(weights):
    """Price operators by weights of a draw, in an order that has nothing to do with what they take."""
    return lambda graph: {
        node.id: weights[hash_of(node.op.name) % len(weights)] for node in graph.nodes if not node.is_view
    }


def hash_of(name):
    return sum(at * ord(letter) for at, letter in enumerate(name, 1))


def results(graph, values):
    return [values[out.value] for out in graph.outputs] + [values[pair.output] for pair in graph.state]


def in_float64(graph):
    """Return what a graph returns and leaves in float64."""
    torch.manual_seed(0)
    tensors, scalars = operands(graph)
    wide = {i: t.double() if t.is_floating_point() else t for i, t in tensors.items()}
    return results(graph, interpret(graph, wide, scalars))


def assert_equal(graph, other):
    for left, right in zip(in_float64(graph), in_float64(other), strict=True):
        left, right = torch.as_tensor(left), torch.as_tensor(right)
        known = left.isfinite() & (left.abs() < 1e100)
        assert error_of(left[known], right[known], floor=1.0) < 1e-9


def assert_complete(graph, found):
    """Each old Value is gone, is still there, or another one of its type stands for it."""
    there, old = found.graph.node, graph.node
    assert set(found.ids.gone) == old.keys() - there.keys()
    assert set(found.ids.new) == there.keys() - old.keys()
    for out, new in zip(graph.outputs, found.graph.outputs, strict=True):
        assert found.ids.of(out.value) == new.value
    for pair, new in zip(graph.state, found.graph.state, strict=True):
        assert found.ids.of(pair.output) == new.output
    for value in (Value(ident, i) for ident in old for i in range(len(old[ident].types))):
        here = found.ids.of(value)
        if here is not None:
            assert shape(found.graph.type(here)) == shape(graph.type(value))


def shape(kind):
    return getattr(kind, "shape", None)


WEIGHTS = st.lists(st.floats(1e-6, 1.0), min_size=5, max_size=7)


@settings(max_examples=15, deadline=None)
@given(runnable_graphs(max_nodes=6), WEIGHTS, st.sampled_from(["saturated", "searched", "templates", "all"]))
def test_random_graphs_stay_equal_acyclic_and_mapped(graph, weights, way):
    price = priced(weights)
    ways = {
        "saturated": lambda: saturated(graph, RULES, price, limits=SHORT, terms=FREE, retype=retyped),
        "searched": lambda: search(graph, RULES, price, limits=SHORT, terms=FREE, alpha=2.0),
        "templates": lambda: improved(graph, price, retyped, limits=SHORT, terms=FREE),
        "all": lambda: cheapest(graph, price, retyped, limits=SHORT, terms=FREE),
    }
    found = ways[way]()
    assert not check_graph(found.graph)
    assert_equal(graph, found.graph)
    assert_types_hold(found.graph)
    assert_complete(graph, found)
    assert sum(e.seconds for e in found.account.entries.values()) == pytest.approx(found.account.seconds)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(range(len(PIECES))), WEIGHTS, st.integers(2, 4))
def test_products_stay_equal_whatever_is_cheap(pick, weights, n):
    generator = torch.Generator().manual_seed(n)
    batch = tuple(torch.randn(n, n, generator=generator) for _ in range(3))
    graph = simplify(Task(Piece(PIECES[pick]), None, None, batch).capture().graph).graph
    found = saturated(graph, RULES, priced(weights), limits=SHORT, terms=FREE, retype=retyped)
    assert not check_graph(found.graph)
    assert_equal(graph, found.graph)
    assert_types_hold(found.graph)


@pytest.mark.parametrize("window", [(3, 1, 1), (2,), (3, 2, 1, False, False), (2, 2, 0, True), (3, 2)])
def test_an_average_pooling_may_be_a_convolution(window):
    rule = next(rule for rule in hand_rules() if rule.name == "pool_by_convolution_once")
    pool = Piece(lambda x: torch.nn.functional.avg_pool2d(x, *window).exp())
    graph = Task(pool, None, None, (torch.rand(2, 3, 7, 7),)).capture().graph
    price = {"avg_pool2d": 9.0}
    found = search(graph, [rule], lambda g: {n.id: price.get(n.op.packet, 1.0) for n in g.nodes}, terms=FREE)
    plain = len(window) < 4
    assert any(node.op.packet == "convolution" for node in found.graph.nodes) is plain
    assert_types_hold(found.graph)
    for left, right in zip(results_of(graph), results_of(found.graph), strict=True):
        assert error_of(left, right) < 1e-6


def results_of(graph):
    tensors, scalars = operands(graph)
    return results(graph, interpret(graph, tensors, scalars))


SCALARS = (
    lambda x: torch.softmax(x, -1),
    lambda x: torch.log_softmax(x, 0),
    lambda x: x.sum(0),
    lambda x: x.sum(-1, keepdim=True),
    lambda x: x.mean(0),
    lambda x: x.amax(0, keepdim=True),
    lambda x: x.max(0).values,
    lambda x: x.transpose(0, -1),
    lambda x: x.permute(()),
    lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.long)),
    lambda x: x.index_select(0, torch.zeros_like(x, dtype=torch.long)),
    lambda x: x.cumsum(0),
    lambda x: x.flip(0),
    lambda x: x.squeeze(0),
    lambda x: x.sort(0).values,
    lambda x: x.logsumexp(0),
)
"""Operators that take an axis of a number, which has none."""


def test_numbers_are_read_without_axes():
    both = Piece(lambda x: sum(f(x.mean()).exp() for f in SCALARS))
    graph = simplify(Task(both, None, None, (torch.rand(2, 3),)).capture().graph).graph
    found = saturated(graph, hand_rules(), by_flops, limits=SHORT, retype=retyped, further=book_rules())
    check_graph(found.graph)
    assert_equal(graph, found.graph)


def product(*shapes):
    batch = tuple(torch.rand(shape) for shape in shapes)
    return simplify(Task(Piece(lambda a, b, c: a @ b @ c), None, None, batch).capture().graph).graph


def by_flops(graph):
    """Price products by what they multiply."""

    def of(node):
        (m, k), (_, n) = (graph.type(value).shape for value in node.inputs)
        return float(m * k * n)

    return {node.id: of(node) for node in graph.nodes if node.op.packet == "mm"}


def test_saturation_is_never_dearer_than_best_first_search_and_says_what_it_used():
    graph = product((9, 8), (8, 7), (7, 2))
    wide, best = (f(graph, RULES, by_flops, limits=SHORT) for f in (saturated, search))
    assert wide.after <= best.after == 9 * 8 * 2 + 8 * 7 * 2
    assert [step.rule for step in wide.steps] == ["associate"]
    assert wide.stop.startswith(("saturated", "limit of 4 rounds; "))
    both = by_rules(graph, by_flops, retyped, limits=SHORT)
    assert both.after == wide.after


@pytest.mark.parametrize("pick", range(0, len(PIECES), 3))
def test_many_rules_find_no_less_than_few_and_make_no_more_than_there_is_room_for(pick):
    batch = tuple(torch.rand(4, 4) for _ in range(3))
    graph = simplify(Task(Piece(PIECES[pick]), None, None, batch).capture().graph).graph
    price = lambda g: {n.id: seconds_of(g, n, CPU) for n in g.nodes if not n.is_view}  # noqa: E731
    few = saturated(graph, hand_rules(), price, retype=retyped)
    many = saturated(graph, hand_rules(), price, retype=retyped, further=book_rules())
    assert many.after <= few.after
    assert many.states <= ROOM + ROOM_EACH * len(graph.nodes) + 8


def test_what_raises_the_peak_is_extracted_again_without_the_rule_that_did():
    graph = product((4, 4), (4, 4), (4, 4))
    copies = parse_rule("copies: matmul(a, b) => matmul(scale[by=1](a), b)")
    cheap = lambda g: {n.id: 5.0 * (n.op.packet == "mm" and n.id in graph.node) for n in g.nodes}  # noqa: E731
    found = saturated(graph, (copies, *hand_rules()), cheap, limits=SHORT)
    assert peak(found.graph) <= peak(graph)
    assert_equal(graph, found.graph)


def test_undecided_rules_are_not_used_unless_asked_for():
    graph = product((9, 8), (8, 7), (7, 2))
    rule = parse_rule("maybe: matmul(matmul(a, b), c) => matmul(a, matmul(b, c)) proof undecided")
    found = saturated(graph, (rule,), by_flops, limits=SHORT)
    assert found.graph is graph
    assert dict(found.account["maybe"].refused) == {"the rule is neither proved nor refuted": 1}
    asked = saturated(graph, (rule,), by_flops, limits=SHORT, terms=Terms(undecided=True))
    assert asked.after < asked.before


def test_equal_operators_are_one_class_and_congruence_follows():
    def twice(a, b, c):
        return (a @ b).exp() + (a @ b).exp() * c

    batch = tuple(torch.rand(3, 3) for _ in range(3))
    graph = Task(Piece(twice), None, None, batch).capture().graph
    classes = Classes(graph)
    named = {}
    for node in graph.nodes:
        named.setdefault(node.op.packet, set()).add(classes.find(Value(node.id)))
    assert len(named["mm"]) == len(named["exp"]) == 1
    found = saturated(graph, (), lambda g: {n.id: 1.0 for n in g.nodes}, limits=SHORT, terms=FREE)
    assert sum(node.op.packet == "mm" for node in found.graph.nodes) == 1
    assert_equal(graph, found.graph)


COUNTED = {
    "of what is the batch again": lambda x: (x * 1).as_strided((4, 4), (4, 1), 10) + 1,
    "of a view of it": lambda x: (x + 0).view(4, 10).t().as_strided((4, 4), (4, 1), 10) * 2,
    "of what is made twice": lambda x: (x * 2).as_strided((4, 4), (4, 1), 10) + (x * 2)[2:6],
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_view_that_counts_in_its_storage_is_of_the_same_storage(name):
    """The batch begins later in its storage than what an operator makes of it does."""
    x = torch.randn(100)[6:46].view(10, 4)
    graph = capture_inference(Piece(COUNTED[name]), (x,)).graph
    price = priced([1.0])
    for made in (simplify(graph).graph, saturated(graph, RULES, price, terms=FREE, retype=retyped).graph):
        (found,) = results(made, interpret(made, {graph.inputs[0].id: x}, {}))
        assert torch.equal(found, COUNTED[name](x))
