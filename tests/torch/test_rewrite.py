"""Rewritten graphs compute the same, and the types that rewrites infer are those of torch."""

import pytest
import torch
from hypothesis import given, settings
from tests.strategies import runnable_graphs

from peakfold.bridge.runtime.compare import same_bits
from peakfold.bridge.runtime.interpret import interpret
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.passes.common import CommonSubexpressions
from peakfold.graph.rewrite.passes.dead import DeadCode
from peakfold.graph.rewrite.passes.views import CanonicalViews
from peakfold.ir.graph import Value
from peakfold.ir.types import TensorType
from peakfold.pipeline.task import Task
from peakfold.plan.check import check_graph
from peakfold.workloads import NAMES, build


def operands(graph, seed=0):
    """Return tensors and numbers for the inputs of a graph."""
    generator = torch.Generator().manual_seed(seed)
    tensors, scalars = {}, {}
    for given_input in graph.inputs:
        kind = given_input.type
        if not isinstance(kind, TensorType):
            scalars[given_input.id] = 0.01
            continue
        dtype = getattr(torch, kind.dtype)
        made = torch.empty_strided(kind.shape, kind.strides, dtype=dtype)
        if dtype.is_floating_point:
            made.copy_(torch.rand(kind.shape, generator=generator) * 0.5 + 0.25)
        else:
            made.copy_(torch.randint(0, 2, kind.shape, generator=generator))
        tensors[given_input.id] = made
    return tensors, scalars


def run(graph, seed=0):
    """Return all values that a graph computes on operands of its own."""
    torch.manual_seed(seed)
    return interpret(graph, *operands(graph, seed))


def results(graph, seed=0):
    """Return what a graph returns and leaves."""
    values = run(graph, seed)
    left = [out.value for out in graph.outputs] + [pair.output for pair in graph.state]
    return [values[value] for value in left]


def assert_same_bits(graph, other, seed=0):
    for left, right in zip(results(graph, seed), results(other, seed), strict=True):
        assert same_bits(torch.as_tensor(left), torch.as_tensor(right))


def assert_types_hold(graph):
    """Each type says what torch gives."""
    for value, found in run(graph).items():
        kind = graph.type(value)
        if isinstance(kind, TensorType) and isinstance(found, torch.Tensor) and found.numel() > 1:
            assert tuple(found.shape) == kind.shape, graph.name_of(value)
            assert str(found.dtype) == f"torch.{kind.dtype}", graph.name_of(value)
            long = [i for i, n in enumerate(kind.shape) if n > 1]
            assert [found.stride(i) for i in long] == [kind.strides[i] for i in long], graph.name_of(value)


@pytest.mark.parametrize("name", NAMES)
def test_bit_keeping_passes_on_workloads(name):
    graph = Task.of(build(name, "tiny")).capture().graph
    now = graph
    for rewrite in (DeadCode(), CanonicalViews(), CommonSubexpressions()):
        done = rewrite(now)
        assert not check_graph(done.graph)
        assert peak(done.graph) <= peak(now)
        assert len(done.graph.nodes) <= len(now.nodes)
        now = done.graph
    assert_same_bits(graph, now)
    assert_types_hold(now)
    again = CanonicalViews()(now).graph
    assert again.digest == now.digest


@settings(max_examples=40, deadline=None)
@given(runnable_graphs())
def test_bit_keeping_passes_on_random_programs(graph):
    now = graph
    for rewrite in (CanonicalViews(), CommonSubexpressions(), DeadCode()):
        done = rewrite(now)
        assert not check_graph(done.graph)
        for node in done.graph.nodes:
            assert node.id in graph.node
        for out, new in zip(now.outputs, done.graph.outputs, strict=True):
            assert done.ids.of(out.value) == new.value
        now = done.graph
    assert peak(now) <= peak(graph)
    assert {Value(node.id) for node in now.nodes} <= {Value(node.id) for node in graph.nodes}
    assert_same_bits(graph, now)
