"""A whole program as one region after the other: what couples the parts is complete before it is read."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.torch.test_regions import GRAPHS, agree, axis, same_results, task_of
from torch import nn
from torch.nn import functional

from peakfold.ir.plan import Plan, Region
from peakfold.pipeline.task import Task
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.stages import stages


def in_stages(graph, parts, of=None):
    whole = prepare(graph)
    component = axis(whole, "batch") if of is None else of
    size = -(-component.length // parts)
    count = -(-component.length // size)
    regions = [Region(component.name, count, p.runs, None, p.anchor) for p in stages(whole, component)]
    return Plan(graph.digest, regions=tuple(regions))


def test_a_step_of_resnet_is_split_along_the_batch_from_end_to_end():
    parts = 2
    task, graph = task_of("resnet50", optimizer="momentum")
    whole = prepare(graph)
    plan = in_stages(graph, parts)
    inside = {run.node for region in plan.regions for run in region.runs if not run.k}
    products = ("convolution", "convolution_backward", "addmm", "mm", "max_pool2d_with_indices")
    left = [n.name for n in whole.nodes if n.op.packet in products and n.id not in inside]
    assert not left
    agree(task, lambda one: in_stages(one, parts))


class Deep(nn.Module):
    """Batch normalizations behind one another, one of them beside a skip."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(c, 4, 3, padding=1) for c in (2, 4, 4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = kept = torch.relu(self.norms[0](self.convs[0](x)))
        for conv, norm in zip(self.convs[1:], self.norms[1:], strict=True):
            x = torch.relu(norm(conv(x)))
        return self.head((x + kept).mean((2, 3)))


def deep():
    torch.manual_seed(0)
    model = Deep()
    batch = (torch.randn(6, 2, 6, 6) * 3 + 90, torch.randint(3, (6,)))
    return Task(
        model,
        lambda m, x, y: functional.cross_entropy(m(x), y),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        batch,
    )


def test_statistics_are_those_of_the_full_batch_where_a_sum_of_squares_would_lose_digits():
    agree(deep(), lambda one: in_stages(one, 3))


def test_what_the_backward_reads_of_the_forward_is_not_kept_whole():
    graph = deep().capture().graph
    derived = derive(prepare(graph), in_stages(graph, 3).regions)
    kept = [derived.graph.name_of(v) for v in derived.graph.storages()]
    names = [graph.name_of(v) for v in graph.storages()]
    assert "relu_1" in names
    assert not [name for name in kept if name.endswith("relu_1")]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_program_in_stages_along_any_axis_computes_what_the_whole_does(data):
    name = data.draw(st.sampled_from(sorted(GRAPHS)))
    graph = GRAPHS[name][0]
    component = data.draw(st.sampled_from([one for one in components(prepare(graph)) if one.length > 1]))
    parts = data.draw(st.integers(2, min(component.length, 5)))
    same_results(name, in_stages(graph, parts, component))
