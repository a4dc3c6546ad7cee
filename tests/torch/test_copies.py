"""Regions of layers that are alike: one candidate, whose copies are split as the first one is."""

import pytest
import torch

import peakfold
from peakfold.ir.plan import Anchor, Run
from peakfold.pipeline.task import Task
from peakfold.plan.fission.copies import Layers
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.pairs import Piece
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.reading import Reading


class Scores(torch.nn.Module):
    """Attention without heads in some layers; scores are as large as the square of the length."""

    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.softmax(x @ x.transpose(0, 1), -1) @ layer(x)
        return x


def first_scores(graph):
    """The scores of the first layer as a region along the queries."""
    softmax = next(node for node in graph.nodes if node.op.name == "aten._softmax.default")
    product = graph.node[graph.storage(softmax.inputs[0]).node]
    return Piece((Run(product.id, 0), Run(softmax.id, 0)), Anchor(softmax.outputs[0], 0, 1))


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_each_layer_has_one_copy(layers):
    torch.manual_seed(0)
    graph = prepare(Task(Scores(layers), None, None, (torch.randn(32, 8),)).capture().graph)
    piece = first_scores(graph)
    axis = next(
        axis
        for axis in components(graph)
        if any((v, f.dim) == (piece.anchor.value, 0) for v, f in axis.members)
    )
    found = list(Layers(Reading(graph)).copies(axis, piece))
    assert len(found) == layers - 1
    runs = [run for each in (piece, *found) for run in each.runs]
    assert len(set(runs)) == 2 * layers
    for each in found:
        names = [graph.node[run.node].op.name for run in each.runs]
        assert names == [graph.node[run.node].op.name for run in piece.runs]
        assert graph.node[each.anchor.value.node].op.name == "aten._softmax.default"


def test_no_layer_has_whole_scores(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))
    torch.manual_seed(0)
    model, x = Scores(3), torch.randn(256, 8)
    step = peakfold.optimize_inference(model, (x,), memory="25%", iterations=60, fission=True)
    assert step.report.equal.ok
    assert step.report.optimized.peak_bytes <= 0.25 * step.report.eager.peak_bytes
