"""Programs of one image: there is no batch to be split along, and rows are what is left."""

from functools import cache

import pytest
import torch
from tests.torch.test_fission_axes import close, run, wide
from tests.torch.test_regions import agree
from torch import nn
from torch.nn import functional

from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan, Region
from peakfold.pipeline.task import Task
from peakfold.plan.check import check_graph
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.stages import stages
from peakfold.workloads.load import load_target

torch.set_num_threads(1)


@cache
def captured(name: str) -> Graph:
    return wide(Task.of(load_target(name, size="tiny", optimizer="sgd", batch=1)).capture().graph)


def in_rows(graph: Graph, parts: int) -> tuple[Region, ...]:
    axis = next(axis for axis in components(graph) if axis.name == "image rows")
    return tuple(Region(axis.name, parts, one.runs, None, one.anchor) for one in stages(graph, axis))


@pytest.mark.parametrize("name", ["unet", "resnet50"])
def test_a_prepared_program_of_one_image_computes_the_same(name):
    graph = captured(name)
    made = prepare(graph)
    assert not check_graph(made)
    before, after = run(graph), run(made)
    pairs = [(out.value, new.value) for out, new in zip(graph.outputs, made.outputs, strict=True)]
    pairs += [(pair.output, new.output) for pair, new in zip(graph.state, made.state, strict=True)]
    for old, new in pairs:
        close(after[new], before[old], 1e-6)


def test_gradients_of_convolutions_are_apart_and_nothing_is_copied():
    packets = [node.op.packet for node in prepare(captured("unet")).nodes]
    whole = [node.op.packet for node in captured("unet").nodes]
    assert packets.count("convolution") == 2 * whole.count("convolution") - 1  # the image has no gradient
    assert "copy" in whole
    assert not {"copy", "clone", "replication_pad2d"} & set(packets)


def test_a_step_of_a_unet_in_parts_of_rows_is_equal():
    task = Task.of(load_target("unet", size="tiny", optimizer="sgd", batch=1))
    assert len(in_rows(prepare(task.capture().graph), 2)) > 30
    agree(task, lambda graph: Plan(graph.digest, regions=in_rows(prepare(graph), 2)))


class Resized(nn.Module):
    """Halved by windows and doubled again, with what is around; rows are never all of one part's."""

    def __init__(self, nearest: float | tuple[int, int]):
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.head, self.nearest = nn.Conv2d(12, 4, 1), nearest

    def forward(self, x):
        kept = functional.gelu(self.down(x))
        small = functional.adaptive_avg_pool2d(kept, (kept.shape[2] // 2, kept.shape[3] // 2))
        given = {"size": self.nearest} if isinstance(self.nearest, tuple) else {"scale_factor": self.nearest}
        large = functional.interpolate(functional.gelu(self.up(small)), **given)
        return self.head(torch.cat((kept, large), 1))


@pytest.mark.parametrize("nearest", [2.0, (16, 8)])
@pytest.mark.parametrize("parts", [2, 3])
def test_what_is_resized_by_whole_numbers_is_in_parts_of_rows(nearest, parts):
    torch.manual_seed(0)
    model = Resized(nearest)
    batch = (torch.randn(1, 3, 16, 8), torch.randint(4, (1, 16, 8)))
    task = Task(
        model,
        lambda m, x, y: functional.cross_entropy(m(x), y),
        torch.optim.AdamW(model.parameters()),
        batch,
    )
    whole = prepare(task.capture().graph)
    inside = {run.node for region in in_rows(whole, parts) for run in region.runs}
    moved = [n for n in whole.nodes if "upsample" in n.name or "adaptive" in n.name]
    assert len([n for n in moved if not n.is_view]) == 6
    assert all(n.id in inside for n in moved if not n.is_view)
    agree(task, lambda graph: Plan(graph.digest, regions=in_rows(prepare(graph), parts)))


@pytest.mark.parametrize("size", [(15, 8), (48, 8), (12, 8)])
def test_what_is_resized_otherwise_stays_one_operator(size):
    task = Task(Resized(size).double().eval(), None, None, (torch.randn(1, 3, 16, 8).double(),))
    model = task.model
    model.forward = lambda x: functional.interpolate(model.down(x), size)
    packets = [node.op.packet for node in prepare(task.capture().graph).nodes]
    assert "upsample_nearest2d" in packets
