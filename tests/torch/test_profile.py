"""Measured costs of operators, one at a time."""

import pytest
import torch

from peakfold.bridge.runtime.operands import Maker, index_limits
from peakfold.bridge.runtime.profile import Effort, machine, profile
from peakfold.cost.cache import CostCache, Measurement
from peakfold.cost.key import keys
from peakfold.ir.graph import Graph, Input, Node, Op, Symbol, Value
from peakfold.ir.types import ScalarType, tensor

QUICK = Effort(runs=2, least_runs=2, batch=1e-6)


def one(name, given, args, *types, kwargs=(), aliases=None):
    inputs = tuple(Input(i, f"x{i}", "batch", kind) for i, kind in enumerate(given))
    node = Node(99, "node", Op(name), args, kwargs, types, aliases or (None,) * len(types))
    return Graph(inputs, (node,), ())


def values(count):
    return tuple(Value(i) for i in range(count))


def long(*shape):
    return tensor(*shape, dtype="int64")


IMAGE = tensor(2, 3, 8, 8)
HALF = tensor(4, dtype="bfloat16")
STRIDED = tensor(64, 64, strides=(1, 64))
CASES = {
    "mm": one("aten.mm.default", (tensor(4, 5), tensor(5, 6)), values(2), tensor(4, 6)),
    "embedding": one("aten.embedding.default", (tensor(7, 3), long(2, 5)), values(2), tensor(2, 5, 3)),
    "embedding_backward": one(
        "aten.embedding_dense_backward.default",
        (tensor(2, 5, 3), long(2, 5)),
        (*values(2), 7, -1, False),
        tensor(7, 3),
    ),
    "gather": one("aten.gather.default", (tensor(4, 6), long(4, 2)), (Value(0), 1, Value(1)), tensor(4, 2)),
    "index": one("aten.index.Tensor", (tensor(4, 6), long(9)), (Value(0), (None, Value(1))), tensor(4, 9)),
    "scatter": one(
        "aten.scatter.value", (tensor(4, 6), long(4, 1)), (Value(0), 1, Value(1), 1.0), tensor(4, 6)
    ),
    "nll": one(
        "aten.nll_loss_forward.default",
        (tensor(5, 3), long(5)),
        (*values(2), None, 1, -100),
        tensor(),
        tensor(),
    ),
    "nll_backward": one(
        "aten.nll_loss_backward.default",
        (tensor(), tensor(5, 3), long(5), tensor()),
        (*values(3), None, 1, -100, Value(3)),
        tensor(5, 3),
    ),
    "nll2d": one(
        "aten.nll_loss2d_forward.default",
        (IMAGE, long(2, 8, 8)),
        (*values(2), None, 1, -100),
        tensor(),
        tensor(),
    ),
    "max_pool_backward": one(
        "aten.max_pool2d_with_indices_backward.default",
        (tensor(2, 3, 4, 4), IMAGE, long(2, 3, 4, 4)),
        (*values(2), (2, 2), (2, 2), (0, 0), (1, 1), False, Value(2)),
        IMAGE,
    ),
    "where": one("aten.where.self", (tensor(4, dtype="bool"), tensor(4), tensor(4)), values(3), tensor(4)),
    "bfloat16": one(
        "aten.exp.default", (tensor(4, dtype="bfloat16"),), values(1), tensor(4, dtype="bfloat16")
    ),
    "strided": one(
        "aten.exp.default", (tensor(4, 3, strides=(1, 4)),), values(1), tensor(4, 3, strides=(1, 4))
    ),
    "expanded": one("aten.exp.default", (tensor(4, 3, strides=(0, 1)),), values(1), tensor(4, 3)),
    "empty": one("aten.exp.default", (tensor(0, 3),), values(1), tensor(0, 3)),
    "host number": one(
        "aten.add.Tensor",
        (tensor(4), tensor(4), ScalarType("float")),
        values(2),
        tensor(4),
        kwargs=(("alpha", Value(2)),),
    ),
    "symbols": one(
        "aten._to_copy.default",
        (tensor(4),),
        values(1),
        tensor(4, dtype="float64"),
        kwargs=(("dtype", Symbol("dtype", "float64")),),
    ),
    "random": one("aten.native_dropout.default", (tensor(4),), (Value(0), 0.5, True), tensor(4), tensor(4)),
    "list": one("aten.cat.default", (tensor(4), tensor(4)), (values(2), 0), tensor(8)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_measured(name):
    costs = profile(CASES[name], CostCache(None), 1, effort=QUICK)
    assert costs.estimated == ()
    assert costs.seconds[99] > 0
    assert costs.workspace[99] >= 0
    assert costs.source == f"measured on {machine(1)}"


def test_an_operator_that_cannot_be_measured_is_estimated_and_named():
    graph = one("nobody.knows.default", (tensor(1 << 20),), values(1), tensor(1 << 20))
    cache = CostCache(None)
    costs = profile(graph, cache, 1, effort=QUICK)
    assert costs.estimated == ("nobody.knows.default",)
    assert costs.seconds[99] == pytest.approx(5e-6 + 2 * 2**22 / (12e9 * 0.8))
    assert cache.get_many(keys(graph, machine(1)).values()) == {}


def test_operands_that_an_operator_refuses_are_not_fatal():
    graph = one("aten.mm.default", (tensor(4, 5), tensor(6, 4)), values(2), tensor(4, 4))
    assert profile(graph, CostCache(None), 1, effort=QUICK).estimated == ("aten.mm.default",)


def test_views_and_host_numbers_cost_nothing():
    view = one("aten.view.default", (tensor(4),), (Value(0), (2, 2)), tensor(2, 2), aliases=(Value(0),))
    costs = profile(view, CostCache(None), 1)
    assert (costs.seconds, costs.workspace) == ({}, {})


def test_views_that_are_made_for_an_operator_count_with_it():
    given = Input(0, "x", "batch", tensor(6))
    view = Node(1, "v", Op("aten.view.default"), (Value(0), (2, 3)), (), (tensor(2, 3),), (Value(0),))
    turned = tensor(3, 2, strides=(1, 3))
    turn = Node(2, "t", Op("aten.t.default"), (Value(1),), (), (turned,), (Value(0),))
    mm = Node(3, "mm", Op("aten.mm.default"), (Value(1), Value(2)), (), (tensor(2, 2),), (None,))
    relu = Node(4, "relu", Op("aten.relu.default"), (Value(3),), (), (tensor(2, 2),), (None,))
    graph = Graph((given,), (view, turn, mm, relu), ())
    cache = CostCache(None)
    found = {key: Measurement(1.0, 0) for key in keys(graph, machine(1)).values()}
    cache.put({**found, f"a view on {machine(1)}": Measurement(0.25, 0)})
    assert profile(graph, cache, 1).seconds == {3: 1.75, 4: 1.0}


def test_what_a_view_takes_is_measured_once():
    view = Node(1, "v", Op("aten.view.default"), (Value(0), (2, 2)), (), (tensor(2, 2),), (Value(0),))
    exp = Node(2, "exp", Op("aten.exp.default"), (Value(1),), (), (tensor(2, 2),), (None,))
    graph, cache = Graph((Input(0, "x", "batch", tensor(4)),), (view, exp), ()), CostCache(None)
    first = profile(graph, cache, 1, effort=QUICK)
    assert 0 <= cache.get(f"a view on {machine(1)}").seconds <= first.seconds[2]
    assert profile(graph, cache, 1, effort=QUICK) == first


def test_what_the_cache_knows_is_not_measured_again():
    cache, asked = CostCache(None), []
    first = profile(CASES["mm"], cache, 1, lambda done, total: asked.append((done, total)), QUICK)
    assert asked == [(0, 1), (1, 1)]
    asked.clear()
    assert profile(CASES["mm"], cache, 1, lambda done, total: asked.append((done, total)), QUICK) == first
    assert asked == []


@pytest.mark.parametrize(
    ("graph", "call"),
    [
        (
            one("aten._softmax.default", (STRIDED,), (Value(0), 1, False), tensor(64, 64)),
            lambda x: torch.ops.aten._softmax.default(x.t(), 1, False),
        ),
        (
            one("aten.sort.default", (tensor(64, 64),), (Value(0),), tensor(64, 64), long(64, 64)),
            torch.ops.aten.sort.default,
        ),
    ],
)
def test_hidden_bytes_are_what_is_taken_beyond_the_outputs(graph, call):
    found = profile(graph, CostCache(None), 1, effort=QUICK).workspace[99]
    assert found == hidden_bytes(call) > 0


def hidden_bytes(call):
    """By the profiler's own account of one call."""
    x = torch.randn(64, 64)
    call(x)
    with torch.profiler.profile(profile_memory=True) as profiler:
        kept = call(x)
    events = profiler.profiler.kineto_results.events()
    sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()) if e.name() == "[memory]"]
    live = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    del kept
    return max(live) - live[-1]


def test_the_users_random_state_and_threads_are_left_alone():
    torch.manual_seed(3)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    profile(CASES["random"], CostCache(None), 1, effort=QUICK)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_indices_point_at_what_is_there():
    limits = {name: index_limits(graph, graph.nodes[0]) for name, graph in CASES.items()}
    assert limits["embedding"] == {Value(1): 7}
    assert limits["embedding_backward"] == {Value(1): 7}
    assert limits["index"] == {Value(1): 6}
    assert limits["nll2d"] == {Value(1): 3}
    assert limits["max_pool_backward"] == {Value(2): 64}
    (args, _) = Maker().call(CASES["index"], CASES["index"].nodes[0])
    assert 0 <= int(args[1][1].min()) <= int(args[1][1].max()) < 6


def test_a_value_read_twice_is_one_tensor():
    graph = one("aten.mul.Tensor", (tensor(4),), (Value(0), Value(0)), tensor(4))
    (args, _) = Maker().call(graph, graph.nodes[0])
    assert args[0] is args[1]
