"""A number that scales the scores of attention scales what they are made of."""

import pytest
import torch
from tests.torch.test_fission_axes import close, run, wide
from tests.torch.test_regions import agree
from torch import nn

from peakfold.ir.plan import Plan, Region
from peakfold.pipeline.task import Task
from peakfold.plan.check import check_graph
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.widest import widest


class Attention(nn.Module):
    """Scores of all places with all, scaled by a number; they are given out where that is asked for."""

    def __init__(self, scale, shows=False, length=24):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale, self.shows = scale, shows

    def forward(self, x):
        scores = torch.bmm(self.q(x), self.k(x).transpose(1, 2).contiguous())
        scaled = self.scale(scores)
        made = torch.bmm(scaled.softmax(-1), self.v(x))
        return made.sum() + (scores.max() if self.shows else 0.0)


def task(scale, *, shows=False, length=24):
    torch.manual_seed(0)
    model = Attention(scale, shows)
    optimizer = torch.optim.AdamW(model.parameters())
    return Task(model, lambda m, x: m(x), optimizer, (torch.randn(3, length, 4),))


def scaled(graph):
    """Bytes of each tensor that is multiplied by a number."""
    one = [n for n in graph.nodes if n.op.packet in ("mul", "div") and n.origin.phase != "update"]
    return [graph.tensor_type(n.inputs[0]).nbytes for n in one if len(n.inputs) == 1]


@pytest.mark.parametrize("scale", [lambda s: s * 0.5, lambda s: 0.3 * s, lambda s: s / 7])
def test_scores_are_not_scaled_and_the_step_is_equal(scale):
    given = task(scale)
    before = wide(given.capture().graph)
    after = prepare(before)
    assert not check_graph(after)
    assert max(scaled(before)) == 3 * 24 * 24 * 8
    assert max(scaled(after)) == 3 * 24 * 4 * 8
    old, new = run(before), run(after)
    pairs = [(a.value, b.value) for a, b in zip(before.outputs, after.outputs, strict=True)]
    pairs += [(a.output, b.output) for a, b in zip(before.state, after.state, strict=True)]
    for a, b in pairs:
        close(new[b], old[a], 1e-12)
    axis = next(axis for axis in components(after) if axis.name == "batch")
    regions = (Region("batch", 3, widest(after, axis)),)
    agree(given, lambda graph: Plan(graph.digest, regions=regions))


def test_scores_that_others_read_or_that_are_small_are_scaled_as_they_were():
    for given in (task(lambda s: s * 0.5, shows=True), task(lambda s: s * 0.5, length=4)):
        before = given.capture().graph
        assert max(scaled(prepare(before))) == max(scaled(before))
