"""Gradients of losses of labels that are written over the log-probabilities: every bit, and fewer bytes."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from tests.torch.capture_support import assert_types_hold, same
from torch import nn

import peakfold
from peakfold.bridge.capture import capture_step
from peakfold.bridge.runtime.interpret import interpret
from peakfold.bridge.runtime.profile import profile
from peakfold.cost.cache import CostCache
from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError
from peakfold.graph.rewrite.passes.losses import GRADIENT, PARTS
from peakfold.graph.rewrite.passes.quicker import QuickerForms
from peakfold.graph.rewrite.simplify import simplified
from peakfold.ir.graph import Graph, Output, Value
from peakfold.ir.plan import Plan
from peakfold.pipeline import prove
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.quicker import Quickened, quickest
from peakfold.pipeline.task import Task

LOSSES = QuickerForms(frozenset(("losses",)))


def setting(rows=24, classes=40, dtype=torch.float32, loss=F.cross_entropy, wide=8):
    torch.manual_seed(0)
    model = nn.Linear(wide, classes, dtype=dtype)
    labels = torch.randint(classes, (rows,))
    labels[:: max(rows // 3, 1)] = -100
    batch = torch.randn(rows, wide, dtype=dtype), labels
    return model, lambda m, x, y: loss(m(x), y), torch.optim.SGD(model.parameters(), 0.1), batch


def graph_of(*given):
    return simplified(capture_step(*given).graph)


def parts(graph: Graph) -> int:
    return sum(node.op.name == GRADIENT for node in graph.nodes)


@settings(max_examples=6, deadline=None)
@drawn(
    rows=st.integers(PARTS, 40),
    classes=st.integers(2, 70),
    double=st.booleans(),
    reduction=st.sampled_from(["mean", "sum"]),
    weighted=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_each_bit_is_as_with_all_rows_at_once(rows, classes, double, reduction, weighted, seed):
    dtype = torch.float64 if double else torch.float32
    weight = torch.linspace(0.5, 2, classes, dtype=dtype) if weighted else None

    def loss(scores, labels):
        return F.cross_entropy(scores, labels, weight=weight, reduction=reduction)

    graph = graph_of(*setting(rows, classes, dtype, loss))
    found = LOSSES(graph).graph
    assert parts(found) == PARTS
    generator = torch.Generator().manual_seed(seed)
    tensors, scalars = {}, {}
    for one in graph.inputs:
        if not hasattr(one.type, "shape"):
            scalars[one.id] = 0.1
        elif one.type.dtype == "int64":
            labels = torch.randint(-1, classes, one.type.shape, generator=generator)
            tensors[one.id] = labels.where(labels >= 0, -100)
        else:
            tensors[one.id] = 9 * torch.randn(one.type.shape, dtype=dtype, generator=generator)
    before, after = interpret(graph, tensors, scalars), interpret(found, tensors, scalars)
    assert_types_hold(found, after)
    pairs = zip(graph.results, found.results, strict=True)
    assert all(same(before[old], after[new]) for old, new in pairs if isinstance(before[old], torch.Tensor))


def test_the_tensor_of_zeros_is_one_part_and_each_part_is_written_in_place():
    given = setting(rows=80, classes=400)
    graph = graph_of(*given)
    found = LOSSES(graph).graph
    captured, size = capture_step(*given), 80 * 400 * 4
    plain, fewer = (
        emit_plan(replace(captured, graph=one), Plan(one.digest), Costs({}, {})) for one in (graph, found)
    )
    assert plain.timeline.peak - fewer.timeline.peak == size - size // PARTS


def stays(given) -> bool:
    graph = graph_of(*given)
    return LOSSES(graph).graph.digest == graph.digest


def test_what_cannot_be_made_row_by_row_stays():
    assert not stays(setting())
    assert stays(setting(rows=PARTS - 1))
    assert stays(setting(dtype=torch.bfloat16))
    assert stays(setting(loss=lambda s, y: F.cross_entropy(s, y, reduction="none").square().mean()))
    assert stays(setting(loss=lambda s, y: F.cross_entropy(s, y, label_smoothing=0.1)))
    assert stays(setting(loss=lambda s, y: (F.cross_entropy(s, y), F.log_softmax(s, 1))))


def test_log_probabilities_that_are_needed_afterwards_stay():
    graph = graph_of(*setting())
    logs = next(node.args[1] for node in graph.nodes if node.op.name == GRADIENT)
    assert isinstance(logs, Value)
    assert parts(LOSSES(graph).graph) == PARTS
    kept = replace(graph, outputs=(*graph.outputs, Output("logs", logs)))
    assert parts(LOSSES(kept).graph) == 1


def test_a_training_step_is_equal():
    task = Task(*setting(), rewriter=Quickened(frozenset(("losses",))))
    captured = task.capture()
    assert parts(captured.graph) == PARTS
    program = emit_plan(captured, Plan(captured.graph.digest), Costs({}, {}, ""))
    found = prove.equal(task, program, prove.watch(task, None), prove.watch(task, program))
    assert found.ok
    assert found.bit_equal


def test_where_bytes_are_short_it_may_take_a_little_longer():
    graph = capture_step(*setting(rows=80, classes=400)).graph

    def with_parts(seconds):
        """Costs in which a gradient in parts takes so many seconds more than all rows at once."""

        def costs(graph):
            extra = seconds if parts(graph) == PARTS else 0.0
            return Costs({n.id: (100.0 + extra) * (n is graph.nodes[0]) for n in graph.nodes}, {}, "")

        return costs

    assert quickest(graph, with_parts(0.4)).kinds == frozenset()
    assert quickest(graph, with_parts(0.4), least=True).kinds == {"losses"}
    assert quickest(graph, with_parts(0.6), least=True).kinds == frozenset()
    assert quickest(graph, with_parts(-1.0)).kinds == {"losses"}
    assert quickest(graph, with_parts(-1.0), least=True, whole=True).kinds == frozenset()
    small = capture_step(*setting(rows=8, classes=2, wide=4000)).graph
    assert quickest(small, with_parts(0.4), least=True).kinds == frozenset()


def test_a_part_in_its_place_is_measured_as_a_part(tmp_path):
    graph = LOSSES(graph_of(*setting(rows=512, classes=2000))).graph
    costs = profile(graph, CostCache(tmp_path / "costs.sqlite"))
    placed = [node.id for node in graph.nodes if node.op.name == "aten.slice_scatter.default"]
    assert len(placed) == PARTS
    assert all(costs.workspace[node] == 0 for node in placed)


def test_a_budget_that_only_rows_in_parts_keep_is_met_with_every_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))
    given = setting(rows=512, classes=2000)
    size = 512 * 2000 * 4
    state = sum(p.nbytes for p in given[0].parameters()) + sum(one.nbytes for one in given[3])
    step = peakfold.optimize_step(*given, memory=state + 3 * size // 2, iterations=200)
    assert step.report.equal.bit_equal
    assert step.report.optimized.peak_bytes <= state + 3 * size // 2
    with pytest.raises(InfeasibleError, match="budget"):
        peakfold.optimize_step(*given, memory=state + size // 2, iterations=200)
