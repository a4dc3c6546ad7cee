"""Rewritten graphs compute the same, and the types that rewrites infer are those of torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import runnable_graphs

from benchmarks.fragments import Piece, is_equal
from peakfold.bridge.runtime.compare import same_bits
from peakfold.bridge.runtime.interpret import interpret
from peakfold.cost import roofline
from peakfold.graph.rewrite.change import Rewritten
from peakfold.graph.rewrite.driver import neighbours, search
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.memory import lowered, memory_moves
from peakfold.graph.rewrite.passes.common import CommonSubexpressions
from peakfold.graph.rewrite.passes.constants import ConstantFolding
from peakfold.graph.rewrite.passes.dead import DeadCode
from peakfold.graph.rewrite.passes.lift import LiftedViews
from peakfold.graph.rewrite.passes.views import CanonicalViews
from peakfold.graph.rewrite.rules import hand_rules
from peakfold.graph.rewrite.simplify import PASSES, simplify
from peakfold.graph.wl import hashed, hashed_after
from peakfold.ir.text import print_graph
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
    for rewrite in PASSES:
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
    for rewrite in (CanonicalViews(), CommonSubexpressions(), ConstantFolding(), DeadCode()):
        done = rewrite(now)
        assert not check_graph(done.graph)
        for node in done.graph.nodes:
            assert node.id in now.node or node.op.packet == "full"
        for out, new in zip(now.outputs, done.graph.outputs, strict=True):
            assert done.ids.of(out.value) == new.value
        now = done.graph
    assert peak(now) <= peak(graph)
    assert_same_bits(graph, now)


@pytest.mark.parametrize("name", ["unetpp", "unet", "bert", "resnet50"])
def test_memory_moves_compute_the_same(name):
    graph = simplify(Task.of(build(name, "tiny")).capture().graph).graph
    seen = set()
    for move in memory_moves(graph):
        if move.rule in seen:
            continue
        seen.add(move.rule)
        done = move.apply()
        assert not check_graph(done.graph)
        assert_types_hold(done.graph)
        if move.keeps_bits:
            assert_same_bits(graph, done.graph)
        else:
            for left, right in zip(results(graph), results(done.graph), strict=True):
                torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)
    assert seen


def test_a_fused_loss_is_as_near_as_the_original():
    graph = simplify(Task.of(build("bert", "tiny")).capture().graph).graph
    done, names = lowered(graph, lambda g: peak(g) - ("scatter_add" in print_graph(g)), keep_bits=False)
    assert "fused_losses" in names
    assert peak(done.graph) <= peak(graph)


@st.composite
def small_products(draw):
    """Modules of a few products, sums and traces over small matrices, and their operands."""
    n = draw(st.integers(2, 5))
    square = [(n, n)] * 3
    pick = draw(st.sampled_from(range(len(PIECES))))
    return PIECES[pick], square


PIECES = (
    lambda a, b, c: a @ b @ c[:, 0],
    lambda a, b, c: a @ c + b @ c,
    lambda a, b, c: torch.diagonal(a @ b) * c[0],
    lambda a, b, c: torch.trace(a @ b) + torch.trace(b @ c),
    lambda a, b, c: torch.kron(a, b) @ torch.kron(b, c),
    lambda a, b, c: (a @ b).sum(1) + (b @ c).mean(0),
    lambda a, b, c: (a @ b)[1] * c,
    lambda a, b, c: torch.cat([a @ c, b @ c], 0),
    lambda a, b, c: torch.diag(a[0]) @ b @ torch.diag(c[0]),
    lambda a, b, c: (a * 0.5) @ b - (a @ c),
)


@settings(max_examples=30, deadline=None)
@given(small_products(), st.integers(0, 3))
def test_every_neighbour_computes_the_same(piece, seed):
    function, shapes = piece
    generator = torch.Generator().manual_seed(seed)
    given_tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    graph = simplify(Task(Piece(function), None, None, tuple(given_tensors)).capture().graph).graph
    tensors = {one.id: t.double() for one, t in zip(graph.inputs, given_tensors, strict=True)}
    expected = interpret(graph, tensors, {})[graph.outputs[0].value]
    for found in neighbours(graph, hand_rules()):
        done = found.apply()
        assert isinstance(done, Rewritten)
        assert not check_graph(done.graph)
        assert_types_hold(done.graph)
        got = interpret(done.graph, tensors, {})[done.graph.outputs[0].value]
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
        assert hashed_after(hashed(graph), done.graph).value == hashed(done.graph).value
        assert set(done.ids.gone) == graph.node.keys() - done.graph.node.keys()


CONVOLVED = {
    "convolution_of_sum": lambda conv: lambda x, y, w, v: conv(x, w) + conv(y, w),
    "convolution_by_sum": lambda conv: lambda x, y, w, v: conv(x, w) + conv(x, v),
    "joined_convolutions": lambda conv: lambda x, y, w, v: torch.cat((conv(x, w), conv(x, v)), 1),
    "scale_of_convolution": lambda conv: lambda x, y, w, v: conv(x * 3.0, w),
}


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("rule", CONVOLVED)
def test_convolutions_of_any_number_of_dimensions_are_made_as_they_were(rule, dims):
    convolve = (torch.conv1d, torch.conv2d, torch.conv3d)[dims - 1]

    def made(groups):
        function = CONVOLVED[rule](lambda x, w: convolve(x, w, None, 2, 1, 1, groups))
        x, w = (2, 4, *(5,) * dims), (4, 4 // groups, *(3,) * dims)
        batch = tuple(torch.rand(shape) for shape in (x, x, w, w))
        graph = simplify(Task(Piece(function), None, None, batch).capture().graph).graph
        found = [one.apply() for one in neighbours(graph, hand_rules()) if one.rule.name == rule]
        return graph, found

    graph, found = made(groups=1)
    assert found
    for one in found:
        for before, after in zip(results(graph), results(one.graph), strict=True):
            torch.testing.assert_close(after, before)
    assert not made(groups=2)[1]


def test_views_are_lifted_past_pointwise_operators():
    def heads(q, k, v):
        return (q @ k.transpose(-2, -1) * 0.5) @ v

    given_tensors = tuple(torch.randn(2, 3, 8, 4) for _ in range(3))
    graph = Task(Piece(heads), None, None, given_tensors).capture().graph
    now = simplify(graph, (*PASSES, LiftedViews(), CanonicalViews())).graph
    assert_same_bits(graph, now)
    assert_types_hold(now)
    found = search(now, hand_rules(), lambda g: roofline.estimate(g, "rtx3090").seconds)
    assert {"associate"} <= {step.rule for step in found.steps} or found.after <= found.before


def test_a_sum_that_cancels_is_judged_by_what_is_summed():
    """The trace of a symmetric matrix times an antisymmetric one is zero: it has no scale of its own."""
    torch.manual_seed(0)
    a, b = torch.randn(2, 64, 64)
    given = (a + a.t(), b - b.t())

    def graph(function):
        return Task(Piece(function), None, None, given).capture().graph

    original = graph(lambda a, b: torch.trace(a @ b))
    assert is_equal(original, graph(lambda a, b: (a * b.t()).sum()), [given])[0]
    assert not is_equal(original, graph(lambda a, b: (a * b.t())[1:].sum()), [given])[0]
    assert not is_equal(original, graph(lambda a, b: (a * b.t()).sum() + 1e-3), [given])[0]
