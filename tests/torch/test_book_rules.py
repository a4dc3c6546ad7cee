"""The rule book on graphs of ATen operators: a rule fires where its left side is, and both sides agree."""

from collections import Counter

import torch

from peakfold.bridge.runtime.interpret import interpret
from peakfold.graph.rewrite.account import Account
from peakfold.graph.rewrite.candidate import build
from peakfold.graph.rewrite.driver import neighbours
from peakfold.graph.rewrite.infer import CannotInfer
from peakfold.graph.rewrite.maker import Maker, first_free
from peakfold.graph.rewrite.rules import book_rules
from peakfold.graph.rule import constants as constants_of
from peakfold.graph.rule import variables
from peakfold.graph.substitution.sampling import Sampler, ranks
from peakfold.ir.graph import Graph, Input, Node, Op, Output, Value
from peakfold.ir.types import tensor
from peakfold.plan.check import check_graph


def program(rule, seed):
    """Return a graph of a rule's left side at a rank and shapes that it takes; None where there is none."""
    for rank in ranks(rule):
        sample = Sampler(rule, seed, rule.lhs + rule.rhs).shapes(rank)
        if sample is None:
            continue
        given = tuple(
            Input(
                at,
                name,
                "batch",
                tensor(*sample.shapes[name], dtype="int64" if name in sample.bounds else "float64"),
            )
            for at, name in enumerate(variables(rule.lhs + rule.rhs))
        )
        start = Node(len(given), "start", Op("aten.neg.default"), (Value(0),), (), (given[0].type,), (None,))
        maker = Maker(Graph(given, (), ()), start, first_free(Graph(given, (start,), ())))
        values = {one.name: Value(one.id) for one in given}
        numbers = dict.fromkeys(constants_of(rule.lhs + rule.rhs), 1.75)
        try:
            roots = [build(maker, term, values, numbers) for term in rule.lhs]
        except CannotInfer:
            continue
        outputs = tuple(Output(f"y{i}", root) for i, root in enumerate(roots))
        generator = torch.Generator().manual_seed(seed)
        tensors = {
            one.id: torch.randint(0, sample.bounds[one.name], one.type.shape, generator=generator)
            if one.name in sample.bounds
            else torch.randn(one.type.shape, dtype=torch.float64, generator=generator)
            for one in given
        }
        return Graph(given, tuple(maker.nodes), outputs), tensors
    return None


def computed(graph, tensors):
    values = interpret(graph, tensors, {})
    return [values[out.value] for out in graph.outputs]


def test_every_rule_of_the_book_that_can_be_said_fires_and_is_equal():
    counts = Counter()
    for at, rule in list(enumerate(book_rules()))[::4]:
        made = program(rule, at)
        if made is None:
            counts["cannot be said"] += 1
            continue
        graph, tensors = made
        assert not check_graph(graph)
        account = Account()
        found = next(neighbours(graph, [rule], account=account), None)
        if found is None:
            assert account[rule.name].refused, f"{rule} is silent"
            counts["does not fire"] += 1
            continue
        done = found.apply()
        counts["fires"] += 1
        assert_types_hold_in(done.graph, tensors)
        for left, right in zip(computed(graph, tensors), computed(done.graph, tensors), strict=True):
            alike = left.isfinite()
            torch.testing.assert_close(left[alike], right[alike], rtol=1e-9, atol=1e-9, msg=str(rule))
    assert counts["fires"] > 0.5 * counts.total(), counts


def assert_types_hold_in(graph, tensors):
    for value, found in interpret(graph, tensors, {}).items():
        kind = graph.type(value)
        assert tuple(found.shape) == kind.shape, graph.name_of(value)
        long = [i for i, n in enumerate(kind.shape) if n > 1]
        assert [found.stride(i) for i in long] == [kind.strides[i] for i in long], graph.name_of(value)


def test_a_rule_says_why_it_does_not_fire():
    by_name = {rule.name: rule for rule in book_rules()}
    graph, _ = program(by_name["mul_of_div_1"], 0)
    account = Account()
    rules = [by_name["mul_of_div_1"], by_name["split_of_exp_1"], by_name["maxpool_of_exp_1"]]
    assert not list(neighbours(graph, rules, account=account))
    assert dict(account["mul_of_div_1"].refused) == {"not nonzero(a)": 1}
    assert dict(account["split_of_exp_1"].refused) == {"no operator of the graph is read as split": 1}
    assert dict(account["maxpool_of_exp_1"].refused) == {"no operator of the graph is read as maxpool": 1}
