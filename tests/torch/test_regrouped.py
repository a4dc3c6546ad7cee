"""Views of views: what the emitted program leaves out changes no element and no stride."""

import math
import re

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peakfold.bridge.capture.step import capture_inference
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.codegen.operators import METHODS, overload
from peakfold.bridge.runtime.source import load_source
from peakfold.ir.plan import Plan
from peakfold.plan.schedule.lower import lower


class Chain(torch.nn.Module):
    """Reads an input through views; each is read alone at the end too."""

    def __init__(self, views, made=False):
        super().__init__()
        self.views, self.made = views, made

    def forward(self, x):
        found = []
        x = x * 2 if self.made else x
        for kind, what in self.views:
            x = x.reshape(what) if kind == "reshape" else x.permute(what)
            found.append(x.abs())
        return *found, x


def emitted(module, x):
    captured = capture_inference(module, (x,))
    graph = captured.graph
    return emit(graph, lower(graph, Plan(graph.digest))), graph


def run(source, graph, x):
    (given,) = graph.inputs
    return load_source(source)({given.name: x}, {})


@st.composite
def chains(draw):
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
    x = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    views, now = [], x
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.integers(0, 3)) == 0:
            order = draw(st.permutations(range(now.dim())))
            views.append(("permute", order))
            now = now.permute(order)
            continue
        target = draw(st.sampled_from([tuple(shape), *shapes(now.numel())]))
        views.append(("reshape", target))
        now = now.reshape(target)
    return x, views, draw(st.booleans())


def shapes(count):
    """All shapes of up to three dimensions with so many elements, and one with what is left open."""
    yield (count,)
    for first in (n for n in range(1, count + 1) if count % n == 0):
        yield (first, -1)
        for second in (n for n in range(1, count // first + 1) if count // first % n == 0):
            yield (first, second, count // first // second)


@settings(max_examples=12, deadline=None)
@given(chains())
def test_chains_of_views_read_the_same(chain):
    x, views, made = chain
    module = Chain(views, made)
    source, graph = emitted(module, x)
    expected, found = module(x), run(source, graph, x)
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
    assert found[-1] is not x


def test_there_and_back_is_left_out():
    views = [("reshape", (1, 6, 4)), ("reshape", (2, 3, 4))]
    source, _ = emitted(Chain(views, made=True), torch.rand(2, 3, 4))
    assert re.findall(r"= abs_?\((\w+)\)", source)
    assert "view(view(" not in source.replace("reshape", "view")


def test_of_several_that_regroup_the_last_one_is_made():
    views = [("reshape", (6, 4)), ("reshape", (4, 6)), ("reshape", (24,))]
    source, _ = emitted(Chain(views, made=True), torch.rand(2, 3, 4))
    calls = [line for line in source.splitlines() if re.search(r"\b(view|reshape)\(", line)]
    assert len(calls) == 4
    assert not any("view(view(" in line.replace("reshape", "view") for line in calls)


def test_what_is_not_dense_is_regrouped_step_by_step():
    x = torch.rand(4, 6).t()
    views = [("reshape", (2, 3, 4)), ("reshape", (6, 4))]
    module = Chain(views)
    source, graph = emitted(module, x)
    for one, other in zip(module(x), run(source, graph, x), strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_what_is_returned_is_a_tensor_of_its_own():
    x = torch.rand(2, 3)
    source, graph = emitted(Chain([("reshape", (3, 2)), ("reshape", (2, 3))]), x)
    *_, last = run(source, graph, x)
    assert last is not x
    assert last.data_ptr() == x.data_ptr()


def test_methods_are_of_the_operators_that_they_stand_for():
    x = torch.arange(24.0).reshape(2, 3, 4)
    arguments = {
        "as_strided": ([3, 2], [1, 3]),
        "detach": (),
        "expand": ([5, 2, 3, 4],),
        "permute": ([2, 0, 1],),
        "reshape": ([6, -1],),
        "select": (1, 2),
        "squeeze": (0,),
        "t": (),
        "transpose": (0, -1),
        "unflatten": (2, [2, 2]),
        "unsqueeze": (-1,),
        "view": ([4, 6],),
    }
    assert set(arguments) == set(METHODS.values())
    for name, method in METHODS.items():
        of = x[0] if method == "t" else x
        made = getattr(torch.Tensor, method)(of, *arguments[method])
        expected = overload(name)(of, *arguments[method])
        assert made.data_ptr() == expected.data_ptr()
        assert made.stride() == expected.stride()
        assert torch.equal(made, expected)
