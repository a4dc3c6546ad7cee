"""Programs of one image: there is no batch to be split along, and rows are what is left."""

from functools import cache

import pytest
import torch
from tests.torch.test_fission_axes import close, run, wide
from tests.torch.test_regions import agree

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
