import pytest

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Input, Node, Op, Origin, Output, State, Value
from peakfold.ir.plan import (
    Arrive,
    Buffer,
    Compute,
    Free,
    Loop,
    Offload,
    Prefetch,
    Release,
    Reuse,
    Run,
    Schedule,
)
from peakfold.ir.types import ScalarType, tensor
from peakfold.plan.schedule.simulate import simulate
from peakfold.report.spans import kinds_of, spans_of, timeline_of


def node(id, op, args, origin="forward", **given):
    return Node(id, f"n{id}", Op(op), args, (), (tensor(10),), (None,), origin=Origin(phase=origin), **given)


@pytest.mark.parametrize("again", [False, True])
def test_every_point_has_the_bytes_that_the_simulator_says(chain, again):
    graph, costs, schedule = chain.graph(), chain.costs(), chain.schedule(again)
    line = timeline_of(graph, schedule, costs)
    simulated = simulate(graph, costs, schedule)
    rows = [row for row, step in enumerate(simulated.steps) if isinstance(step, Compute)]
    assert line.totals == tuple(simulated.during[row] for row in rows)
    assert line.peak_bytes == simulated.peak
    assert len(line.steps) == len(line.seconds) == len(rows)


def test_second_runs_are_named_and_residents_span_the_step(chain):
    line = timeline_of(chain.graph(), chain.schedule(again=True), chain.costs())
    assert "layers.5.relu (again)" in line.steps
    weights = [block for block in line.blocks if block.kind == "parameters"]
    assert {(block.start, block.end) for block in weights} == {(0, len(line.steps))}
    assert sorted(block.name for block in weights) == sorted(
        f"layers.{i}.weight" for i in range(chain.layers)
    )


def test_blocks_know_module_and_source(chain):
    line = timeline_of(chain.graph(), chain.schedule(again=False), chain.costs())
    found = next(block for block in line.blocks if block.name == "layers.3.relu")
    assert (found.module, found.source, found.kind) == ("layers.3", "model.py:13", "activations")


def test_kinds_of_gradients_updates_and_state():
    inputs = (
        Input(0, "w", "parameter", tensor(10)),
        Input(1, "momentum", "optimizer", tensor(10)),
        Input(2, "mask", "constant", tensor(10)),
        Input(3, "lr", "scalar", ScalarType("float")),
    )
    nodes = (
        node(4, "aten.relu.default", (Value(0),)),
        node(5, "aten.neg.default", (Value(4),), "backward"),
        node(6, "aten.mul.Tensor", (Value(1), Value(5)), "update"),
        node(7, "aten.sqrt.default", (Value(6),), "update"),
        node(8, "aten.sub.Tensor", (Value(0), Value(7)), "update"),
    )
    state = (State(0, Value(8)), State(1, Value(6)), State(3, Value(3)))
    kinds = kinds_of(Graph(inputs, nodes, (Output("y", Value(4)),), state))
    assert [kinds[Value(i)] for i in (0, 1, 2, 4, 5, 6, 7, 8)] == [
        "parameters",
        "optimizer state",
        "buffers",
        "activations",
        "gradients",
        "optimizer state",
        "workspace",
        "parameters",
    ]


def test_a_donated_buffer_changes_hands_without_new_bytes():
    graph = Graph(
        (Input(0, "x", "batch", tensor(10)),),
        (node(1, "aten.exp.default", (Value(0),)), node(2, "aten.neg.default", (Value(1),))),
        (Output("y", Value(2)),),
    )
    donate = Reuse(0, Value(1), "donate")
    schedule = Schedule((Compute(Run(1)), Compute(Run(2), (donate,))))
    line = timeline_of(graph, schedule, Costs({}, {}))
    assert line.totals == (80, 80)
    assert [(block.name, block.start, block.end) for block in line.blocks[1:]] == [("n1", 0, 1), ("n2", 1, 2)]


def test_loops_and_transfers_are_points():
    graph = Graph(
        (Input(0, "x", "batch", tensor(10)),),
        (node(1, "aten.exp.default", (Value(0),)), node(2, "aten.neg.default", (Value(1),))),
        (Output("y", Value(2)),),
    )
    kept = Buffer(Value(1))
    moves = (Offload(kept), Release(kept), Prefetch(kept), Arrive(kept))
    schedule = Schedule((Compute(Run(1)), *moves, Compute(Run(2)), Free(kept)))
    assert timeline_of(graph, schedule, Costs({}, {})).steps == ("n1", "prefetch n1", "n2")
    away = tuple(type(move)(Buffer(Value(0))) for move in moves)
    lent = timeline_of(graph, Schedule((*away[:2], *schedule.steps[:1], *away[2:])), Costs({}, {}))
    assert lent.steps == ("n1", "prefetch x")
    assert [(b.name, b.start, b.end) for b in lent.blocks] == [("x", 0, 0), ("n1", 0, 2), ("x", 1, 2)][1:]
    looped = Schedule((Loop("batch", 4, (Compute(Run(1)), Compute(Run(2)), Free(kept))),))
    assert timeline_of(graph, looped, Costs({}, {})).steps == ("loop batch", "n1", "n2")


def test_reads_go_to_the_run_that_is_read(chain):
    found = spans_of(chain.graph(), chain.schedule(again=True), chain.costs())
    runs = {span.buffer: span for span in found.spans if not span.scratch}
    value = Value(chain.relu[5])
    names = [chain.graph().node[point.run.node].name for point in found.points]
    assert [names[at] for at in runs[Buffer(value)].reads] == ["layers.6.mm"]
    assert [names[at] for at in runs[Buffer(value, 1)].reads] == [
        "layers.6.weight_grad",
        "layers.5.relu_backward",
    ]
