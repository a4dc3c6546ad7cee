"""Axes of whole programs: whatever a region may have, computed in parts and joined, is the whole."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.torch.parts import call, in_parts

from peakfold.bridge.runtime.interpret import interpret
from peakfold.ir.graph import Graph, Symbol, Value
from peakfold.ir.plan import Region, Run
from peakfold.ir.types import TensorType
from peakfold.ops.links import without_rule
from peakfold.pipeline.task import Task
from peakfold.plan.check import check_graph
from peakfold.plan.fission.assign import Refusal, assign
from peakfold.plan.fission.candidates import candidates
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.nested import regions_of
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.states import Partial
from peakfold.plan.fission.tree import Tree, first_parts, region_of, rest_of
from peakfold.plan.fission.widest import widest
from peakfold.workloads import BEYOND_NAMES, NAMES, load_target

torch.set_num_threads(1)
SINGLE = {"mixtral", "lstm"}
"""Whose kernels have no float64."""

IN_ROWS = {"unet", "convnext"}
"""Tried in parts of rows and columns."""

BARRIERS = {"aten.arange.default", "aten.arange.start"}


@cache
def captured(name):
    return wide(Task.of(load_target(name, size="tiny", optimizer="sgd")).capture().graph)


def wide(graph):
    """The graph in float64."""

    def arg(item):
        if isinstance(item, tuple):
            return tuple(map(arg, item))
        return Symbol("dtype", "float64") if item == Symbol("dtype", "float32") else item

    def kind(of):
        single = isinstance(of, TensorType) and of.dtype == "float32"
        return replace(of, dtype="float64") if single else of

    nodes = tuple(
        replace(
            node,
            args=arg(node.args),
            kwargs=tuple((key, arg(item)) for key, item in node.kwargs),
            types=tuple(map(kind, node.types)),
        )
        for node in graph.nodes
    )
    inputs = tuple(replace(given, type=kind(given.type)) for given in graph.inputs)
    return Graph(inputs, nodes, graph.outputs, graph.state)


def given(graph):
    """Tensors of the right types: weights that keep numbers of a size, labels that are small."""
    torch.manual_seed(0)
    found = {}
    for item in graph.inputs:
        if not isinstance(item.type, TensorType):
            found[Value(item.id)] = 0.1
        elif item.type.dtype == "float64":
            found[Value(item.id)] = torch.randn(item.type.shape, dtype=torch.float64) * 0.3 + 0.4
        elif item.type.dtype == "bool":
            found[Value(item.id)] = torch.ones(item.type.shape, dtype=torch.bool).tril()
        else:
            found[Value(item.id)] = torch.randint(0, 2, item.type.shape)
    return found


def run(graph):
    values = given(graph)
    for node in graph.nodes:
        values.update(zip(node.outputs, call(node, values), strict=True))
    return values


def close(found, whole, floor):
    if found.is_floating_point():
        scale = max(float(whole.nan_to_num(0, 0, 0).abs().max()), floor) if whole.numel() else 1.0
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-9 * scale, equal_nan=True)
    else:
        assert torch.equal(found, whole)


def region(graph, axis):
    """The nodes that can be split along an axis: all that run along it, less those that are refused."""
    nodes = {v.node for v, _ in axis.members if v.node in graph.node}
    nodes -= {n.id for n in graph.nodes if n.op.random}
    while nodes:
        found = assign(graph, [Run(node) for node in nodes], axis)
        if not isinstance(found, Refusal):
            return nodes, found
        if found.node is None:
            return set(), None
        nodes.discard(found.node)
    return nodes, None


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_of_the_workloads_has_a_rule(name):
    assert set(without_rule(captured(name))) <= BARRIERS


@pytest.mark.parametrize("name", [*NAMES, "t5", "convnext", "segformer", "moe_dense", "diffusion", "llama"])
def test_parts_of_a_program_make_the_whole(name):
    graph = prepare(captured(name))
    values = run(graph)
    tried = 0
    for axis in components(graph)[:6]:
        nodes, states = region(graph, axis)
        if not nodes:
            continue
        if axis.shares:
            tried += name not in IN_ROWS or in_rows(graph, values, axis)
            continue
        order = [node for node in graph.nodes if node.id in nodes]
        for parts in sorted({2, min(3, axis.length)}):
            found = in_parts(graph, order, states, axis.length, values, parts)
            for value, got in found.items():
                made = "empty" in graph.node[value.node].op.name
                if isinstance(got, torch.Tensor) and not made:
                    close(got, values[value], 1e-3 if isinstance(states[value], Partial) else 1e-6)
        tried += 1
    assert tried >= 2


def in_rows(graph, values, axis):
    """Try the widest region along an axis whose parts share places; say whether there is one."""
    runs = widest(graph, axis)
    if runs and axis.length > 1:
        computes_the_same(graph, values, [Region(axis.name, 2, runs)])
    return bool(runs)


@pytest.mark.parametrize("name", [*NAMES, *(name for name in BEYOND_NAMES if name not in SINGLE)])
def test_a_prepared_program_computes_the_same(name):
    graph = captured(name)
    made = prepare(graph)
    assert not check_graph(made)
    assert prepare(graph).digest == made.digest
    if any(node.op.random for node in graph.nodes):
        return
    before, after = run(graph), run(made)
    pairs = [(out.value, new.value) for out, new in zip(graph.outputs, made.outputs, strict=True)]
    pairs += [(pair.output, new.output) for pair, new in zip(graph.state, made.state, strict=True)]
    for old, new in pairs:
        close(after[new], before[old], 1e-6)


@pytest.mark.parametrize("name", ["bert", "unet", "resnet50", "gptneo"])
def test_every_candidate_is_a_region(name):
    graph = prepare(captured(name))
    hot = {value for value in graph.storages() if value.node in graph.node}
    found = candidates(graph, hot, components(graph))
    assert found
    sources = {candidate.source for candidate in found}
    assert sources >= {"hot", "stretch", "dominator"}
    values = run(graph)
    paired = [candidate for candidate in found if candidate.source in ("pair", "alike")]
    for candidate in dict.fromkeys((*found[:10], *found[-4:], *paired[:4])):
        computes_the_same(graph, values, all_of(candidate))


def all_of(candidate):
    """The regions of a candidate in as few parts as come out."""
    parts = first_parts(candidate)
    return [region_of(candidate, parts), *rest_of(candidate, parts)]


def test_scores_of_attention_are_whole_in_no_layer():
    graph = prepare(captured("attention"))
    hot = {value for value in graph.storages() if value.node in graph.node}
    found = candidates(graph, hot, components(graph))
    alike = next(
        one for one in found if one.source == "alike" and one.axis == "sequence" and len(one.rest) == 3
    )
    derived = derive(graph, all_of(alike))
    scores = 4 * 64 * 64 * 8
    assert any(graph.nbytes(value) >= scores for value in graph.storages())
    assert all(derived.graph.nbytes(value) < scores for value in derived.graph.storages())
    again = [run for run in alike.every if run.k]
    assert [graph.node[run.node].op.packet for run in again] == 2 * ["bmm", "mul", "_softmax"]
    computes_the_same(graph, run(graph), all_of(alike))


@pytest.mark.parametrize("name", ["bert", "unet", "gptneo"])
def test_nested_regions_compute_the_same(name):
    graph = prepare(captured(name))
    values = run(graph)
    hot = {value for value in graph.storages() if value.node in graph.node}
    tree = Tree(candidates(graph, hot, components(graph)))
    outer = next(k for k, item in enumerate(tree.candidates) if item.axis == "batch")
    parts = tuple(2 if k == outer else 1 for k in range(len(tree.candidates)))
    nests = [move for move in tree.moves(parts) if move.kind == "nest"]
    assert nests
    for move in nests[:3]:
        regions = regions_of(graph, tree, move.parts)
        assert regions[0].plan is not None
        computes_the_same(graph, values, regions)


def test_regions_are_nested_three_deep():
    graph = prepare(captured("bert"))
    values = run(graph)
    hot = {value for value in graph.storages() if value.node in graph.node}
    tree = Tree(candidates(graph, hot, components(graph)))
    outer = next(k for k, item in enumerate(tree.candidates) if item.axis == "batch")
    parts = tuple(2 if k == outer else 1 for k in range(len(tree.candidates)))
    deep = [
        two
        for one in tree.moves(parts)
        for two in tree.moves(one.parts)
        if (one.kind, two.kind) == ("nest", "nest") and tree.is_within(two.index, one.index)
    ]
    assert deep
    for move in deep[:2]:
        region, *_ = regions_of(graph, tree, move.parts)
        (inner,) = region.plan.regions
        assert [one.axis for one in inner.plan.regions] == [tree.candidates[move.index].axis]
        computes_the_same(graph, values, [region])


def computes_the_same(graph, values, regions):
    """Run a program with its loops, and compare all that it gives out."""
    tensors = {v.node: x for v, x in values.items() if v.node in graph.input and isinstance(x, torch.Tensor)}
    scalars = {v.node: x for v, x in values.items() if v.node in graph.input and v.node not in tensors}
    derived = derive(graph, regions)
    found = interpret(derived.graph, tensors, scalars, derived.bodies)
    pairs = [(a.value, b.value) for a, b in zip(graph.outputs, derived.graph.outputs, strict=True)]
    pairs += [(a.output, b.output) for a, b in zip(graph.state, derived.graph.state, strict=True)]
    for old, new in pairs:
        close(found[new], values[old], 1e-6)


def test_what_is_not_a_region_says_why():
    graph = prepare(captured("bert"))
    axes = {axis.name: axis for axis in components(graph)}
    everything = [Run(node.id) for node in graph.nodes if node.origin.phase == "forward"]
    found = assign(graph, everything, axes["sequence"])
    assert isinstance(found, Refusal)
    assert found.why == "bert.encoder.layer.0.attention.self.bmm runs along it twice, in dimensions 1 and 2"
    vocabulary = assign(graph, everything, axes["vocabulary"])
    assert isinstance(vocabulary, Refusal)
    assert "cannot be split along it" in vocabulary.why
