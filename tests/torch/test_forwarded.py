"""Pieces that are written in place and read again: the same bits, without the whole."""

import random
from dataclasses import replace

import pytest
import torch
from tests.torch.capture_support import assert_types_hold, same
from tests.torch.test_quicker import Call
from torch import nn

from peakfold.bridge.capture import capture_inference, capture_step
from peakfold.bridge.runtime.interpret import interpret
from peakfold.cost.costs import Costs
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.passes.forwarded import ForwardedParts
from peakfold.ir.plan import Plan
from peakfold.pipeline import prove
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.quicker import Quickened
from peakfold.pipeline.task import Task

SHAPE = (4, 6, 8)


def piece(draw, x):
    """A part of a tensor, made in one of the ways that there are."""
    dim = draw.randrange(-x.dim(), x.dim())
    length = x.shape[dim]
    start = draw.randrange(length)
    stop = draw.randrange(start + 1, length + 1)
    return draw.choice(
        [
            lambda: x.narrow(dim, start, stop - start),
            lambda: x.select(dim, start),
            lambda: x.chunk(2, dim)[start % 2],
            lambda: x.unsafe_chunk(2, dim)[start % 2],
            lambda: x.unbind(dim)[start - length],
            lambda: x.split([start, length - start], dim)[1],
            lambda: x[-2:],
        ]
    )()


def program(seed):
    """Writes into random pieces of a tensor and reads random pieces, or all of it."""

    def run(x, y):
        draw = random.Random(seed)
        x = x * 2
        read = []
        for _ in range(draw.randrange(2, 7)):
            part = piece(draw, x)
            other = part * 0.5 + y.flatten()[: part.numel()].view(part.shape)
            write = draw.choice([torch.Tensor.add_, torch.Tensor.copy_, lambda part, _: part.sigmoid_()])
            write(part, other)
            again = draw.choice([part, piece(draw, x), piece(draw, x)])
            read.append(draw.choice([torch.exp, torch.neg, torch.neg, lambda part: part.sum(0)])(again))
        if draw.random() < 0.3:
            read.append(x.clone())
        return tuple(read)

    return run


@pytest.mark.parametrize("block", range(4))
def test_random_writes_into_pieces(block):
    given = tuple(torch.randn(SHAPE, generator=torch.Generator().manual_seed(i)) for i in range(2))
    changed = 0
    for seed in range(20 * block, 20 * (block + 1)):
        graph = capture_inference(Call(program(seed)), given).graph
        found = ForwardedParts()(graph).graph
        changed += found.digest != graph.digest
        values = interpret(found, {one.id: x for one, x in zip(graph.inputs, given, strict=True)}, {})
        assert_types_hold(found, values)
        expected = program(seed)(*given)
        assert all(map(same, expected, (values[out.value] for out in found.outputs))), seed
        assert peak(found) <= peak(graph)
    assert changed > 3


def scatters(graph):
    return sum("slice_scatter" in node.op.name for node in graph.nodes)


@pytest.mark.parametrize("options", [{"num_layers": 2}, {"bidirectional": True}])
def test_of_the_copies_of_all_gates_of_a_gru_few_are_left(options):
    torch.manual_seed(0)
    model = nn.GRU(8, 25, **options)
    adamw = torch.optim.AdamW(model.parameters())
    task = Task(model, lambda m, x: m(x)[0].square().mean(), adamw, (torch.randn(5, 3, 8),))
    captured = task.capture()
    before = scatters(captured.graph)
    rewritten = replace(task, rewriter=Quickened())
    captured = rewritten.capture()
    assert scatters(captured.graph) <= before * 2 // 5
    program = emit_plan(captured, Plan(captured.graph.digest), Costs({}, {}, ""))
    found = prove.equal(rewritten, program, prove.watch(task, None), prove.watch(rewritten, program))
    assert found.bit_equal
    assert found.ok


def test_an_operator_that_reads_memory_keeps_its_piece():
    """A layer norm of what was written would be right; what it was captured on lies with gaps."""

    def loss(model, x):
        y = x * 2
        part = y[:, 2:6]
        part.add_(1)
        return model(part).square().mean() + y.mean()

    model = nn.LayerNorm(4)
    graph = capture_step(model, loss, None, (torch.randn(3, 8),)).graph
    norm = next(n for n in ForwardedParts()(graph).graph.nodes if "layer_norm" in n.op.name)
    made = graph.node[norm.args[0].node]
    assert made.is_view or graph.tensor_type(norm.args[0]).is_contiguous
