"""Images in parts of their rows: chains of operators whose parts share rows compute what the whole does."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from peakfold.bridge.capture import capture_inference
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.runtime.interpret import interpret
from peakfold.bridge.runtime.source import load_source
from peakfold.cost.costs import Costs
from peakfold.errors import PlanError
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan, Region
from peakfold.ir.regions import candidates
from peakfold.ir.text import parse_plan, print_plan
from peakfold.plan.check import check_graph, require_legal
from peakfold.plan.fission.derive import Splitter, derive
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.program import outer_plan, planned
from peakfold.plan.fission.widest import widest

FREE = Costs({}, {})
CHANNELS = 4


class Twice(nn.Module):
    """Two ways that meet again: what both read reaches as far as the one that needs more."""

    def __init__(self, left: nn.Module, right: nn.Module):
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x):
        return torch.cat((self.left(x), self.right(x)), 1)[:, :CHANNELS] + x


class Running(nn.Module):
    """A sum that goes on from row to row: no part can make what its neighbour has."""

    def forward(self, x):
        return x.cumsum(2)


class Adaptive(nn.Module):
    """The mean of windows of two by two, said by the size of what is left."""

    def forward(self, x):
        return nn.functional.adaptive_avg_pool2d(x, (x.shape[2] // 2, x.shape[3] // 2))


def conv(kernel: int, padding: int, stride: int = 1, dilation: int = 1, groups: int = 1) -> nn.Module:
    return nn.Conv2d(CHANNELS, CHANNELS, kernel, stride, padding, dilation, groups)


def layers():
    """Layers by name; those behind a bar halve the image, those behind a star double it."""
    return {
        "conv3": lambda: conv(3, 1),
        "conv5": lambda: conv(5, 2, groups=2),
        "dilated": lambda: conv(3, 2, dilation=2),
        "even": lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 0)), nn.Conv2d(4, 4, (1, 2))),
        "relu": nn.ReLU,
        "gelu": nn.GELU,
        "average": lambda: nn.AvgPool2d(3, 1, 1),
        "largest": lambda: nn.MaxPool2d(3, 1, 1),
        "two": lambda: Twice(conv(3, 1), nn.Sequential(conv(5, 2), nn.ReLU(), conv(3, 1))),
        "|pool": lambda: nn.MaxPool2d(2),
        "|strided": lambda: conv(3, 1, 2),
        "|one": lambda: conv(1, 0, 2),
        "|stem": lambda: nn.MaxPool2d(3, 2, 1),
        "|adaptive": Adaptive,
        "*nearest": lambda: nn.Upsample(scale_factor=2),
        "*spread": lambda: nn.ConvTranspose2d(4, 4, 2, 2),
        "*wide": lambda: nn.ConvTranspose2d(4, 4, 4, 2, 1),
        "*odd": lambda: nn.ConvTranspose2d(4, 4, 3, 2, 1, 1),
    }


@st.composite
def images(draw) -> tuple[Graph, dict[int, torch.Tensor]]:
    made, names = layers(), draw(st.lists(st.sampled_from(sorted(layers())), min_size=1, max_size=6))
    halves = [name for name in names if name.startswith("|")][2:]
    names = [name for name in names if name not in halves] or ["relu"]
    return program(nn.Sequential(*(made[name]() for name in names)), 16, draw(st.integers(1, 2)))


def program(model: nn.Module, rows: int, samples: int = 1) -> tuple[Graph, dict[int, torch.Tensor]]:
    """A program of whole numbers, in which sums are exact; a mean is of few bits."""
    torch.manual_seed(0)
    model = model.double().eval()
    for parameter in model.parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape).double()
    x = torch.randint(-3, 4, (samples, CHANNELS, rows, 8)).double()
    graph = prepare(capture_inference(model, (x,)).graph)
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return graph, {item.id: held[item.name].detach() if item.name in held else x for item in graph.inputs}


def same(graph: Graph, tensors: dict[int, torch.Tensor], regions: tuple[Region, ...]) -> None:
    """Check what regions compute, as graphs and as an emitted program, against the whole."""
    plan = Plan(graph.digest, regions=regions)
    derived = derive(graph, regions)
    assert not check_graph(derived.graph)
    nest = planned(derived, outer_plan(plan, derived), lambda _: FREE)
    for inner in nest.nests():
        assert not check_graph(inner.graph)
        require_legal(inner.graph, inner.schedule)
    assert parse_plan(print_plan(plan, graph, splitter=Splitter()), graph, Splitter()) == plan
    whole = interpret(graph, tensors, {})
    found = interpret(derived.graph, tensors, {}, derived.bodies)
    emitted = load_source(emit(nest.graph, nest.schedule, nest.timeline, loops=nest.loops))
    results = emitted({item.name: tensors[item.id] for item in graph.inputs}, {})
    for before, after, result in zip(graph.outputs, derived.graph.outputs, results, strict=True):
        expected = whole[before.value]
        torch.testing.assert_close(found[after.value], expected, rtol=1e-12, atol=1e-9)
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-9)


def region_of(graph: Graph, name: str, size: int, ids: list[int] | None = None) -> Region | None:
    axis = next((found for found in components(graph) if found.name == name), None)
    if axis is None or axis.length <= size:
        return None
    runs = widest(graph, axis, ids)
    return Region(name, -(-axis.length // size), runs) if runs else None


@settings(max_examples=25, deadline=None)
@given(images(), st.sampled_from(["image rows", "image columns"]), st.integers(1, 5), st.data())
def test_any_stretch_in_parts_of_rows_computes_what_the_whole_does(case, name, size, data):
    graph, tensors = case
    nodes = list(candidates(graph))
    begin = data.draw(st.integers(0, len(nodes) - 1))
    end = data.draw(st.integers(begin, len(nodes) - 1))
    region = region_of(graph, name, size, nodes[begin : end + 1])
    if region is not None:
        same(graph, tensors, (region,))


@pytest.mark.parametrize("name", sorted(layers()))
def test_each_layer_between_convolutions_is_split_along_rows(name):
    graph, tensors = program(nn.Sequential(conv(3, 1), layers()[name](), conv(3, 1)), 16)
    region = region_of(graph, "image rows", 2)
    assert region is not None
    assert len(region.runs) == len(candidates(graph))
    same(graph, tensors, (region,))


def test_a_running_sum_makes_no_more_than_its_part():
    graph, tensors = program(nn.Sequential(conv(3, 1), Running(), conv(3, 1)), 16)
    region = region_of(graph, "image rows", 4)
    assert region is not None
    assert len(region.runs) < len(candidates(graph))
    same(graph, tensors, (region,))
    graph, tensors = program(nn.Sequential(conv(3, 1), Running(), nn.ReLU()), 16)
    region = region_of(graph, "image rows", 4)
    assert region is not None
    assert len(region.runs) == len(candidates(graph))
    same(graph, tensors, (region,))


def test_what_a_part_reads_twice_is_padded_once():
    graph, _ = program(Twice(conv(3, 1), conv(3, 1)), 16)
    region = region_of(graph, "image rows", 4)
    assert region is not None
    (body,) = derive(graph, (region,)).bodies.values()
    assert [node.op.packet for node in body.graph.nodes].count("constant_pad_nd") == 1


def test_numbers_of_a_part_are_clear_to_read():
    graph, _ = program(conv(3, 1), 16)
    region = region_of(graph, "image rows", 4)
    assert region is not None
    derived = derive(graph, (region,))
    nest = planned(derived, outer_plan(Plan(graph.digest, regions=(region,)), derived), lambda _: FREE)
    text = emit(nest.graph, nest.schedule, nest.timeline, loops=nest.loops)
    assert "slice(batch_0, 2, max(start - 1, 0), min(stop + 1, 16))" in text
    assert "[0, 0, max(1 - start, 0), max(stop - 15, 0)]" in text


def test_no_region_is_nested_where_parts_share_rows():
    graph, _ = program(nn.Sequential(conv(3, 1), nn.ReLU(), conv(3, 1)), 16, samples=2)
    outer = region_of(graph, "image rows", 4)
    assert outer is not None
    (body,) = derive(graph, (outer,)).bodies.values()
    inner = region_of(body.part, "batch", 1)
    assert inner is not None
    nested = Region(outer.axis, outer.parts, outer.runs, Plan(body.part.digest, regions=(inner,)))
    with pytest.raises(PlanError, match="parts that share rows with neighbours"):
        derive(graph, (nested,))
