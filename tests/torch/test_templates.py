"""Templates, layouts and constants compute the same, are counted, and are made only where they pay."""

import pytest
import torch
from tests.torch.test_rewrite import assert_same_bits, assert_types_hold
from torch import nn

from benchmarks.fragments import Piece
from peakfold.bridge.runtime.compare import error_of
from peakfold.bridge.runtime.interpret import interpret
from peakfold.bridge.runtime.retype import retyped
from peakfold.bridge.runtime.target import copied, doubled
from peakfold.errors import PlanError
from peakfold.graph.rewrite.cheapest import cheapest
from peakfold.graph.rewrite.driver import Terms
from peakfold.graph.rewrite.improve import improved
from peakfold.graph.rewrite.layout import channels_last, laid_out
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.passes.constants import ConstantFolding
from peakfold.graph.rewrite.simplify import simplify
from peakfold.graph.rewrite.templates import TEMPLATES
from peakfold.pipeline import rewriting
from peakfold.pipeline.api import optimize_inference
from peakfold.pipeline.carry import Carrier
from peakfold.pipeline.exact import of_target, target_of
from peakfold.pipeline.task import Task
from peakfold.plan.check import check_graph

FREE = Terms(may_raise_peak=True, margin=0.0)


class Heads(nn.Module):
    """Query, key and value of one input."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, width) for width in (8, 8, 4))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-2, -1)
        return scores.softmax(-1) @ self.v(x)


class Normed(nn.Module):
    """Convolutions, each followed by a normalization, one with a bias and one without a scale."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3)
        self.norms = nn.ModuleList((nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False)))
        for norm in self.norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(x)).relu() + 1).mean((2, 3))


def branches(x, k, m):
    return torch.conv2d(x, k, padding=1).relu() * torch.conv2d(x, m, padding=1).exp()


def captured(module, *batch):
    task = Task(module.eval(), None, None, batch)
    return task, simplify(task.capture().graph).graph


def by_count(graph):
    """Price a graph by its operators that are no views."""
    return {node.id: 1.0 for node in graph.nodes if not node.is_view}


def error_in_float64(task, given, found):
    """Return the error of a rewrite of a task in float64."""
    double = of_target(task, doubled(copied(target_of(task)))).capture()
    carried = Carrier(given, found)(double.graph)
    tensors = [*task.model.double().parameters(), *task.model.buffers(), *task.batch]
    byname = dict(task.model.named_parameters()) | dict(task.model.named_buffers())
    rest = iter([leaf.double() for leaf in task.batch])
    operands = {one.id: byname.get(one.name, None) for one in double.graph.inputs}
    operands = {
        ident: next(rest) if tensor is None else tensor.detach() for ident, tensor in operands.items()
    }
    assert tensors
    pairs = [interpret(graph, operands, {})[graph.outputs[0].value] for graph in (double.graph, carried)]
    assert_types_hold(carried)
    assert not check_graph(carried)
    return error_of(*pairs)


def count(graph, word):
    return sum(node.op.packet == word for node in graph.nodes)


CASES = {
    "merged_products": (Heads, (torch.rand(2, 5, 8),), "addmm", 3, 1),
    "folded_norms": (Normed, (torch.rand(2, 3, 6, 6),), "native_batch_norm", 2, 0),
    "merged_convolutions": (
        lambda: Piece(branches), (torch.rand(2, 3, 5, 5), torch.rand(4, 3, 3, 3), torch.rand(2, 3, 3, 3)),
        "convolution", 2, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_template_is_counted_and_equal(name):
    make, batch, word, before, after = CASES[name]
    if name == "merged_convolutions":
        batch = (batch[0], batch[1], torch.rand(4, 3, 3, 3))
    task, graph = captured(make(), *batch)
    prices = {"folded_norms": lambda g: {n.id: 100.0 * (n.op.packet == word) for n in g.nodes}}
    price = prices.get(name, lambda g: {n.id: 100.0 * (n.op.packet == word) + 1 for n in g.nodes})
    found = improved(graph, price, retyped, templates={name: TEMPLATES[name]}, terms=FREE)
    assert count(graph, word) == before
    assert count(found.graph, word) == after
    assert {step.rule for step in found.steps} == {name}
    assert found.account[name].fired == len(found.steps)
    assert_types_hold(found.graph)
    assert error_in_float64(task, graph, found.graph) < 1e-12


@pytest.mark.parametrize("make", [Heads, Normed])
def test_nothing_is_done_where_it_costs_as_much(make):
    batch = (torch.rand(2, 5, 8),) if make is Heads else (torch.rand(2, 3, 6, 6),)
    _, graph = captured(make(), *batch)
    found = improved(graph, lambda g: {}, retyped, terms=Terms(margin=0.02))
    assert found.graph is graph
    refused = [reason for row in found.account.entries.values() for reason in row.refused]
    assert set(refused) == {"it costs more, or as much"}


def test_a_template_does_not_raise_the_peak():
    task, graph = captured(Heads(), torch.rand(1, 2, 8))
    one = {"merged_products": TEMPLATES["merged_products"]}
    found = improved(graph, by_count, retyped, templates=one, terms=Terms(margin=-10.0))
    assert peak(found.graph) <= peak(graph)
    assert found.account["merged_products"].refused["it would raise the peak"] == 1
    forced = improved(graph, by_count, retyped, templates=one, terms=Terms(may_raise_peak=True, margin=-10.0))
    assert peak(forced.graph) > peak(graph)
    assert error_in_float64(task, graph, forced.graph) < 1e-12


def last_is_cheap(graph):
    """Price convolutions by their layout, and transpositions by a little."""

    def of(node):
        kind = graph.type(node.inputs[0]) if node.inputs else None
        if node.op.packet == "convolution":
            return 1.0 if kind == channels_last(kind) else 10.0
        return 2.0 if node.op.packet == "clone" else 1.0

    return {node.id: of(node) for node in graph.nodes}


def test_layouts_are_chosen_with_the_fewest_transpositions():
    task, graph = captured(Normed(), torch.rand(2, 3, 6, 6))
    layouts = {"channels_last": lambda g: laid_out(g, last_is_cheap, retyped)}
    found = improved(graph, last_is_cheap, retyped, templates=layouts, terms=FREE)
    kinds = [
        graph.type(value).shape
        for n in found.graph.nodes
        if n.op.packet == "clone"
        for value in n.outputs
        if value.node in graph.node
    ]
    clones = [node for node in found.graph.nodes if node.op.packet == "clone"]
    assert len(clones) == 4, "two kernels, the images in, the images out"
    assert not kinds
    assert error_in_float64(task, graph, found.graph) < 1e-12
    dear = {"channels_last": lambda g: laid_out(g, lambda h: {n.id: 1.0 for n in h.nodes}, retyped)}
    assert improved(graph, by_count, retyped, templates=dear, terms=FREE).graph is graph


def folds(x):
    ones, off = torch.ones(3), torch.zeros(3, dtype=torch.bool)
    y = torch.where(off, x.exp(), x * ones) / 1.0
    y = y.masked_fill(off, 3.0) - 0.0
    return y**1 * (ones + ones * 2)


def test_constants_fold_and_keep_every_bit():
    graph = Task(Piece(folds), None, None, (torch.tensor([-0.0, 1.5, float("inf")]),)).capture().graph
    done = ConstantFolding()(graph)
    again = simplify(done.graph).graph
    assert_same_bits(graph, again)
    assert_types_hold(again)
    words = [node.op.packet for node in again.nodes if not node.is_view]
    assert sorted(words) == ["full", "mul"]


@pytest.mark.parametrize(
    ("number", "kept"), [(-0.0, True), (0.0, False), (1.0, True)], ids=["minus zero", "zero", "one"]
)
def test_only_what_is_neutral_is_dropped(number, kept):
    """x - (-0.0) makes -0.0 into 0.0."""
    x = torch.tensor([-0.0, 2.0])
    graph = Task(Piece(lambda x: (x - number).exp()), None, None, (x,)).capture().graph
    done = ConstantFolding()(graph)
    assert (count(done.graph, "sub") == 1) is kept
    assert_same_bits(graph, done.graph)


def test_adding_zero_is_not_neutral_for_floats():
    graph = Task(Piece(lambda x: (x + 0.0).exp()), None, None, (torch.ones(2),)).capture().graph
    assert ConstantFolding()(graph).graph is graph


def test_the_pipeline_proves_what_was_rewritten(monkeypatch, tmp_path):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))
    monkeypatch.setattr(rewriting, "is_faster", lambda task, before, after: (True, "faster"))
    monkeypatch.setattr(rewriting, "_price", lambda asked, options: by_norms)
    monkeypatch.setattr(rewriting, "saves", lambda before, after: True)
    torch.manual_seed(0)
    model = Normed().eval()
    fn = optimize_inference(model, (torch.rand(2, 3, 6, 6),), rounding=True, iterations=5)
    assert "rewritten: folded_norms" in " ".join(fn.report.notes)
    assert fn.report.equal.ok
    assert fn.report.equal.bound == 1e-9
    x = torch.rand(2, 3, 6, 6)
    torch.testing.assert_close(fn(x), model(x), rtol=1e-4, atol=1e-5)
    other = torch.rand(5, 3, 6, 6)
    torch.testing.assert_close(fn(other), model(other), rtol=1e-4, atol=1e-5)


def by_norms(graph):
    return {node.id: 100.0 * ("norm" in node.op.packet) + 1 for node in graph.nodes}


def test_a_rewrite_is_not_carried_to_other_shapes():
    _, graph = captured(Heads(), torch.rand(2, 5, 8))
    found = cheapest(
        graph, lambda g: {n.id: 100.0 * (n.op.packet == "addmm") for n in g.nodes}, retyped, terms=FREE
    )
    assert found.steps
    _, other = captured(Heads(), torch.rand(3, 7, 8))
    with pytest.raises(PlanError, match="cannot be done to another"):
        Carrier(graph, found.graph)(other)
