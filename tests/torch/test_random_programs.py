"""Random graphs under random plans: what the emitted program computes is what torch computes, bit for bit."""

from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import BINARY, UNARY, plans, pointwise, runnable_graphs
from tests.torch.interpret import random_inputs, run_graph

from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.runtime.source import load_source
from peakfold.ir.graph import Value
from peakfold.ir.types import tensor
from peakfold.plan.schedule.lower import lower


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in every bit; nan is equal to the same nan."""
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.int32), b.contiguous().view(torch.int32)
    )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_planned_program_is_bit_equal(data):
    graph = data.draw(runnable_graphs())
    step = load_source(emit(graph, lower(graph, data.draw(plans(graph)))))
    tensors, scalars = random_inputs(graph)
    before = {name: value.clone() for name, value in tensors.items()}
    torch.manual_seed(1)
    expected = run_graph(graph, before, scalars)
    stream = torch.get_rng_state()
    torch.manual_seed(1)
    results = step(tensors, scalars)
    assert torch.equal(stream, torch.get_rng_state())
    for out, found in zip(graph.outputs, results, strict=True):
        if graph.storage(out.value).node in graph.new_value:
            continue  # the user's own tensor: it shows the update, as it does in eager
        assert same(found, expected[out.value]), out.name
    for item in graph.inputs:
        if item.kind != "scalar":
            new = expected[graph.new_value.get(item.id, Value(item.id))]
            assert same(tensors[item.name], new), item.name


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(2, 3), (1, 2), (2, 1), (1, 1), (3, 3)])
def test_random_graphs_say_the_strides_that_torch_makes(shape, turned):
    x = torch.rand(shape[::-1]).t() if turned else torch.rand(shape)
    kind = tensor(*shape, strides=x.stride())
    ops = torch.ops.aten
    made = [getattr(ops, name)(x) for name in UNARY if name != "clone"]
    made += [reduce(getattr, name.split("."), ops)(x, x) for name in BINARY]
    assert {result.stride() for result in made} == {pointwise(kind).strides}
    assert ops.mul.Tensor(x, 0.5).stride() == ops.clone(x).stride() == kind.strides
