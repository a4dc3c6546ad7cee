"""What is simulated is what the allocator hands out, on every workload."""

import pytest
import torch

from peakfold.bridge.capture import capture_step
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.runtime import measure
from peakfold.bridge.runtime.operands import Maker, index_limits
from peakfold.bridge.runtime.profile import Effort, profile
from peakfold.bridge.runtime.source import load_source
from peakfold.cost.cache import CostCache
from peakfold.ir.graph import Value
from peakfold.ir.plan import Plan
from peakfold.ir.types import TensorType
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate
from peakfold.workloads import NAMES, build


@pytest.fixture(autouse=True)
def one_thread():
    """Convolutions choose their algorithm, and so their workspace, by the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


QUICK = Effort(runs=1, least_runs=1, batch=1e-6, copies=1)


def inputs_of(graph):
    """Tensors and numbers by name; indices point at what is there."""
    limits = {
        graph.storage(value): limit
        for node in graph.nodes
        for value, limit in index_limits(graph, node).items()
    }
    maker, tensors, scalars = Maker(), {}, {}
    for given in graph.inputs:
        made = maker.operand(graph, Value(given.id), limits.get(Value(given.id), 2))
        (tensors if isinstance(given.type, TensorType) else scalars)[given.name] = made
    return tensors, scalars


@pytest.mark.parametrize("name", NAMES)
def test_predicted_bytes_are_the_measured_ones(name):
    target = build(name, "tiny")
    graph = capture_step(target.model, target.loss_fn, target.optimizer, target.batch).graph
    costs = profile(graph, CostCache(None), 1, effort=QUICK)
    assert costs.estimated == ()
    tensors, scalars = inputs_of(graph)
    for plan in (Plan(graph.digest), Plan(graph.digest, updates="last", reuse=False)):
        schedule = lower(graph, plan)
        timeline = simulate(graph, costs, schedule)
        marked = load_source(emit(graph, schedule, marks=True))
        curve = measure.live_curve(lambda f=marked: f(tensors, scalars, measure.mark), timeline.resident)
        assert curve == timeline.live
        program = load_source(emit(graph, schedule))
        found = measure.peak_bytes(lambda f=program: f(tensors, scalars), 1, resident=timeline.resident)
        assert timeline.peak == pytest.approx(found.peak_bytes, rel=0.01)
