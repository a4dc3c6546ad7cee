"""Reductions over the split axis: parts combine by its own operator; running ones go on."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peakfold.bridge.capture import capture_inference
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.runtime.interpret import interpret
from peakfold.bridge.runtime.source import load_source
from peakfold.cost.costs import Costs
from peakfold.ir.plan import Plan, Region
from peakfold.plan.check import check_graph, require_legal
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.program import outer_plan, planned
from peakfold.plan.fission.widest import widest

REDUCTIONS = {
    "amax": lambda x: (x + x).amax(0),
    "amin": lambda x: (x + x).amin(0, keepdim=True),
    "all": lambda x: (x > -1).all(0),
    "any": lambda x: (x > 1).any(0),
    "prod": lambda x: (x + x).prod(0),
    "sum": lambda x: (x + x).sum(0),
    "mean": lambda x: (x + x).mean(0),
    "logsumexp": lambda x: torch.logsumexp(40 * x, 0),
    "cumsum": lambda x: (x + x).cumsum(0) * 2,
    "cumprod": lambda x: (x + x).cumprod(0),
    "mean of cumsum": lambda x: (x + x).cumsum(0).square().sum(0),
    "viewed max": lambda x: (x + x).amax(0).view(-1, 1) * 3,
}
INSIDE = {"amax", "amin", "all", "any", "prod", "sum", "logsumexp", "cumsum", "cumprod"}
FLOATS = ("mean", "logsumexp")


class Reduced(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.function = REDUCTIONS[name]

    def forward(self, x):
        return self.function(x)


def split_results(name, x, parts):
    """What the interpreted loop makes, what the emitted one makes, and the region."""
    graph = capture_inference(Reduced(name), (x,)).graph
    whole = prepare(graph)
    axis = max(components(whole), key=lambda one: (one.length == x.shape[0], one.nodes))
    region = Region(axis.name, parts, widest(whole, axis))
    plan = Plan(graph.digest, regions=(region,))
    derived = derive(whole, plan.regions)
    nest = planned(derived, outer_plan(plan, derived), lambda _: Costs({}, {}))
    for part in nest.nests():
        assert not check_graph(part.graph)
        require_legal(part.graph, part.schedule)
    (given,) = graph.inputs
    values = interpret(derived.graph, {given.id: x}, {}, derived.bodies)
    step = load_source(emit(nest.graph, nest.schedule, nest.timeline, loops=nest.loops, bodies=nest.bodies))
    (found,) = step({given.name: x.clone()}, {})
    return values[derived.graph.outputs[0].value], found, region


def cut(length, parts):
    size = -(-length // min(parts, length))
    return -(-length // size)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(REDUCTIONS)),
    st.integers(2, 9),
    st.integers(2, 9),
    st.booleans(),
    st.integers(0, 99),
)
def test_parts_of_a_reduction_combine(name, length, parts, whole_numbers, seed):
    torch.manual_seed(seed)
    x = torch.randn(length, 3, dtype=torch.float64) * 2
    if whole_numbers and name not in FLOATS:
        x = x.round().to(torch.int64)
    expected = REDUCTIONS[name](x)
    seen, found, region = split_results(name, x, cut(length, parts))
    assert len(region.runs) >= 1
    for one in (seen, found):
        assert one.dtype == expected.dtype
        if expected.is_floating_point():
            torch.testing.assert_close(one, expected, rtol=1e-12, atol=1e-12)
        else:
            assert torch.equal(one, expected)


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_the_reduction_itself_is_inside(name):
    x = torch.randn(6, 3, dtype=torch.float64)
    graph = prepare(capture_inference(Reduced(name), (x,)).graph)
    inside = split_results(name, x, 3)[2].runs
    packets = {graph.node[run.node].op.packet for run in inside}
    assert packets & INSIDE


def test_infinite_and_missing_numbers_are_those_of_the_whole():
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[-inf, nan, 1.0], [-inf, 2.0, inf], [-inf, 3.0, 4.0], [-inf, 0.0, -inf]])
    for name in ("amax", "amin", "logsumexp", "any", "all"):
        seen, found, _ = split_results(name, x, 2)
        for one in (seen, found):
            torch.testing.assert_close(one, REDUCTIONS[name](x), equal_nan=True)


def test_logsumexp_does_not_overflow_in_parts():
    x = torch.tensor([[700.0], [800.0], [900.0], [-900.0]], dtype=torch.float64)
    seen, found, _ = split_results("logsumexp", x, 4)
    expected = REDUCTIONS["logsumexp"](x)
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(seen, expected)
    torch.testing.assert_close(found, expected)


def test_a_running_sum_hands_one_place_to_the_next_part():
    x = torch.arange(7, dtype=torch.int64).repeat(3, 1).t().contiguous()
    seen, found, region = split_results("cumsum", x, 3)
    assert len(region.runs) == 3
    assert torch.equal(seen, REDUCTIONS["cumsum"](x))
    assert torch.equal(found, REDUCTIONS["cumsum"](x))
