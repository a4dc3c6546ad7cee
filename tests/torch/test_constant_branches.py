"""Branches whose predicate is constant are folded, and the program stays the same."""

import random
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.torch.test_dataflow import Program, blocks
from torch import nn
from torch._higher_order_ops import while_loop

from peakfold.bridge.capture import capture_inference
from peakfold.bridge.runtime.interpret import interpret
from peakfold.graph.rewrite.constants import constant
from peakfold.graph.rewrite.passes.dead import DeadCode
from peakfold.ir.control import COND, WHILE, nested
from peakfold.ir.graph import Op, Symbol, Value
from peakfold.ir.text import parse_graph
from peakfold.plan.check import check_graph

BRANCH = """peakfold graph 1
device cpu
inputs
  %0 x : f32[3] batch
  %1 y : f32[3] batch
nodes
  %2 full = aten.full.default([], {filled}) : f32[]
  %3 gt = aten.gt.Scalar(%full, 0) : b1[]
  %4 exp = aten.exp.default(%y) : f32[3]
  %5 cond = peakfold.cond(%gt, %x, %exp) : f32[3]
    graph
      inputs
        %0 x : f32[3] batch
        %1 exp : f32[3] batch
      nodes
        %2 cos = aten.cos.default(%x) : f32[3]
      outputs
        out.0 = %cos
    graph
      inputs
        %0 x : f32[3] batch
        %1 exp : f32[3] batch
      nodes
        %2 add = aten.add.Tensor(%x, %exp) : f32[3]
      outputs
        out.0 = %add
  %6 neg = aten.neg.default(%cond) : f32[3]
outputs
  z = %neg
"""


def run(graph, *batch):
    values = interpret(graph, dict(zip((one.id for one in graph.inputs), batch, strict=True)), {})
    return values[graph.outputs[0].value]


def test_the_side_that_runs_stands_for_the_branch_and_the_other_is_dead():
    for filled, left in ((1, ["cos", "neg"]), (-1, ["exp", "add", "neg"]), (0, ["exp", "add", "neg"])):
        graph = parse_graph(BRANCH.format(filled=filled))
        assert check_graph(graph) == []
        found = DeadCode()(graph)
        assert check_graph(found.graph) == []
        assert [node.op.packet for node in found.graph.nodes] == left
        x, y = torch.randn(3), torch.randn(3)
        assert torch.equal(run(graph, x, y), run(found.graph, x, y))
        assert found.ids.of(Value(5)) in {out for node in found.graph.nodes for out in node.outputs}


def test_a_number_that_rounds_is_not_taken_for_constant():
    for filled in ("0.1", "1e30", "16777217"):
        graph = parse_graph(BRANCH.format(filled=filled))
        assert constant(graph, Value(3)) is None
        assert DeadCode()(graph).graph == graph


def test_a_predicate_of_an_input_stays():
    graph = parse_graph(
        BRANCH.format(filled=1).replace("aten.gt.Scalar(%full, 0)", "aten.gt.Tensor(%x, %full)")
    )
    assert [node.op.name for node in DeadCode()(graph).graph.nodes][-2] == COND


def test_what_no_side_reads_is_no_operand():
    text = BRANCH.format(filled=1).replace("aten.add.Tensor(%x, %exp)", "aten.sin.default(%x)")
    graph = parse_graph(text.replace("aten.full.default([], 1)", "aten.sum.default(%x)"))
    found = DeadCode()(graph).graph
    assert [node.op.packet for node in found.nodes] == ["sum", "gt", "cond", "neg"]
    assert check_graph(found) == []


def test_a_loop_that_never_begins_gives_copies():
    class Net(nn.Module):
        def forward(self, x):
            return while_loop(lambda v: torch.zeros(()) > 0, lambda v: (v.sin(),), (x,))[0] * 2

    graph = capture_inference(Net(), torch.zeros(3)).graph
    assert any(node.op.name == WHILE for node in graph.nodes)
    found = DeadCode()(graph).graph
    assert [node.op.packet for node in found.nodes] == ["clone", "mul"]
    x = torch.randn(3)
    assert torch.equal(run(found, x), x * 2)


def decided(graph, draw):
    """Return a graph some of whose predicates are constant, those of graphs inside of it included."""

    def made(node):
        bodies = tuple(decided(body, draw) for body in node.bodies)
        if node.op.packet != "gt" or draw.random() < 0.3:
            return replace(node, bodies=bodies)
        kwargs = (("dtype", Symbol("dtype", "bool")),)
        return replace(node, op=Op("aten.full.default"), args=((), draw.random() < 0.5), kwargs=kwargs)

    return replace(graph, nodes=tuple(made(node) for node in graph.nodes))


def branches(graph):
    return sum(node.op.name == COND for one in nested(graph) for node in one.nodes)


@settings(max_examples=25, deadline=None)
@given(blocks, st.integers(0, 1000))
def test_a_random_program_stays_the_same(block, seed):
    torch.manual_seed(seed)
    batch = tuple(torch.randn(3) for _ in range(2))
    whole = Program([("cond", 0, block, [("unary", "sin", 0)]), *block])
    graph = decided(capture_inference(whole, batch).graph, random.Random(seed))
    found = DeadCode()(graph).graph
    assert check_graph(found) == []
    for one in nested(found):
        assert not any(
            node.op.name == COND and constant(one, node.inputs[0]) is not None for node in one.nodes
        )
    assert branches(found) <= branches(graph)
    assert torch.equal(run(graph, *batch), run(found, *batch))
