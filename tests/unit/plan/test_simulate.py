"""Bytes and seconds of small schedules, worked out by hand."""

import pytest

from peakfold.cost.costs import Costs, Link
from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Input, Node, Op, Origin, Output, State, Value
from peakfold.ir.plan import (
    Arrive,
    Buffer,
    Commit,
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
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.simulate import simulate
from peakfold.plan.schedule.timeline import composition

FLOAT = tensor(25)


def node(id_, name, *reads, types=(FLOAT,), aliases=None, phase="forward", op="aten.exp.default"):
    args = tuple(Value(read) if isinstance(read, int) else read for read in reads)
    return Node(
        id_, name, Op(op), args, (), types, aliases or (None,) * len(types), origin=Origin(phase=phase)
    )


# w is a parameter; a, b forward; v a view of a; g backward; new the updated w.
GRAPH = Graph(
    inputs=(Input(0, "w", "parameter", FLOAT), Input(1, "lr", "scalar", ScalarType("float"))),
    nodes=(
        node(2, "a", 0),
        node(3, "v", 2, aliases=(Value(2),), op="aten.view.default"),
        node(4, "b", 3),
        node(5, "step", 1, types=(ScalarType("float"),), op="host.neg"),
        node(6, "g", 4, 2, phase="backward"),
        node(7, "new", 0, 6, 5, phase="update", op="aten.add.Tensor"),
    ),
    outputs=(Output("loss", Value(4)),),
    state=(State(0, Value(7)),),
)
COSTS = Costs({2: 1.0, 4: 2.0, 6: 4.0, 7: 8.0}, {4: 30}, link=Link(bandwidth=100.0, latency=0.5, copy=1000.0))


def run(*steps, costs=COSTS):
    return simulate(GRAPH, costs, Schedule(steps))


def buffer(id_, k=0):
    return Buffer(Value(id_), k)


def compute(id_, k=0, *reuses):
    return Compute(Run(id_, k), reuses)


PLAIN = (
    compute(2),
    compute(4),
    compute(5),
    compute(6),
    Free(buffer(2)),
    compute(7),
    Free(buffer(6)),
    Commit(0),
    Free(buffer(7)),
)


def test_tables():
    tables = tabulate(GRAPH, COSTS)
    assert tables.nodes.tolist() == [2, 4, 5, 6, 7]
    assert [owner.node for owner in tables.storages] == [0, 1, 2, 4, 5, 6, 7]
    assert tables.operand_begin.tolist() == [0, 1, 2, 3, 5, 8]
    assert tables.operands.tolist() == [0, 2, 1, 3, 2, 0, 5, 4]
    assert tables.outputs.tolist() == [2, 3, 4, 5, 6]
    assert tables.users.tolist() == [0, 4, 2, 1, 3, 3, 4, 4]
    assert tables.nbytes.tolist() == [100, 0, 100, 100, 0, 100, 100]
    assert tables.producer.tolist() == [-1, -1, 0, 1, 2, 3, 4]
    assert tables.host_number.tolist() == [False, True, False, False, True, False, False]
    assert tables.is_output.tolist() == [False, False, False, True, False, False, False]
    assert tables.replaces.tolist() == [-1, -1, -1, -1, -1, -1, 0]
    assert (tables.state_input.tolist(), tables.state_output.tolist()) == ([0], [6])
    assert tables.update.tolist() == [False, False, False, False, True]
    assert tables.host.tolist() == [False, False, True, False, False]
    assert tables.workspace.tolist() == [0, 30, 0, 0, 0]
    assert tables.resident == 100
    assert (4, 6, 0) in {
        (step, int(tables.reuse_output[i]), int(tables.reuse_operand[i]))
        for step in range(tables.steps)
        for i in range(tables.reuse_begin[step], tables.reuse_begin[step + 1])
    }


def test_a_plain_schedule():
    timeline = run(*PLAIN)
    assert timeline.live == (200, 300, 300, 400, 300, 400, 300, 300, 200)
    assert timeline.during == (200, 330, 300, 400, 400, 400, 400, 300, 300)
    assert timeline.peak == 400
    assert timeline.hotspots == (3, 4, 5, 6)
    assert timeline.seconds == pytest.approx(15.1)
    assert composition(GRAPH, timeline) == {"parameter": 100, "activation": 200, "gradient": 100}
    assert composition(GRAPH, timeline, 1) == {"parameter": 100, "activation": 200, "workspace": 30}
    assert composition(GRAPH, timeline, 5) == {"parameter": 200, "activation": 100, "gradient": 100}


def test_what_is_written_in_place_takes_nothing():
    update = Reuse(0, Value(0), "update")
    timeline = run(compute(2), compute(4), compute(5), compute(6, 0, Reuse(0, Value(3), "donate")))
    assert timeline.live[-1] == 300
    assert {span.buffer.value.node for span in timeline.alive(3)} == {0, 4, 6}
    timeline = run(*PLAIN[:5], compute(7, 0, update), Free(buffer(6)))
    assert timeline.live[-2:] == (300, 200)
    assert [(span.buffer.value.node, span.resident) for span in timeline.alive(6)] == [
        (4, False),
        (6, False),
        (7, True),
    ]


def test_a_second_run_is_a_second_buffer():
    timeline = run(
        compute(2), compute(4), Free(buffer(2)), compute(2, 1), compute(6), Free(buffer(2, 1)), compute(7)
    )
    assert timeline.live == (200, 300, 200, 300, 400, 300, 400)
    assert timeline.seconds == 1 + 2 + 1 + 4 + 8


def test_transfers_run_beside_compute():
    timeline = run(
        compute(2),  # 0 .. 1
        compute(4),  # 1 .. 3
        Offload(buffer(2)),  # 3 .. 4.5
        compute(7),  # 3 .. 11, beside the copy
        Release(buffer(2)),  # the copy has ended long ago
        compute(5),  # 11 .. 11
        Prefetch(buffer(2)),  # 11 .. 12.5
        Arrive(buffer(2)),  # waits
        compute(6),  # 12.5 .. 16.5
    )
    assert timeline.live == (200, 300, 300, 400, 300, 300, 400, 400, 500)
    assert timeline.begin == (0, 1, 3, 3, 11, 11, 11, 12.5, 12.5)
    assert timeline.end == (1, 3, 4.5, 11, 11, 11, 12.5, 12.5, 16.5)
    assert (timeline.seconds, timeline.out_seconds, timeline.in_seconds) == (16.5, 1.5, 1.5)
    assert timeline.host_peak == 100
    moved = [(span.first, span.last) for span in timeline.spans if span.buffer == buffer(2)]
    assert moved == [(0, 4), (6, 2**31 - 1)]


def test_to_release_what_is_on_its_way_out_is_to_wait_for_it():
    timeline = run(compute(2), Offload(buffer(2)), Release(buffer(2)), compute(4))
    assert timeline.live == (200, 200, 100, 200)
    assert timeline.begin == (0, 1, 2.5, 2.5)


def test_bytes_do_not_depend_on_how_fast_transfers_are():
    steps = (compute(2), Offload(buffer(2)), compute(4), Release(buffer(2)), Prefetch(buffer(2)))
    slow, fast = (
        run(*steps, costs=Costs({}, {}, link=Link(bandwidth=b, latency=0.0, copy=1.0))) for b in (1.0, 1e9)
    )
    assert slow.live == fast.live
    assert slow.seconds > fast.seconds


def test_an_input_may_wait_on_the_host():
    moves = (Offload(buffer(0)), Release(buffer(0)), compute(2), Prefetch(buffer(0)), Arrive(buffer(0)))
    timeline = run(*moves)
    assert timeline.live == (100, 0, 100, 200, 200)
    own = [(span.first, span.last) for span in timeline.spans if span.buffer == buffer(0)]
    assert own == [(-1, 1), (3, 2**31 - 1)]


def test_host_bytes_are_held_until_the_copy_back_has_ended():
    moves = (Offload(buffer(2)), Release(buffer(2)), Prefetch(buffer(2)))
    again = (Offload(buffer(4)), Arrive(buffer(2)))
    assert run(compute(2), compute(4), *moves, *again).host_peak == 200
    assert run(compute(2), compute(4), *moves, *again[::-1]).host_peak == 100


def test_a_transfer_that_outlasts_compute_counts():
    timeline = run(compute(2), Offload(buffer(2)))
    assert timeline.seconds == 2.5


def test_a_loop_is_simulated_for_one_part():
    timeline = run(
        compute(2),
        Loop("r", 3, (compute(4), compute(6), Free(buffer(4)), Free(buffer(2)))),
        Free(buffer(6)),
    )
    # 6 outlives a part: held from the start; 2 is from outside: held to the end
    assert timeline.live == (200, 300, 400, 400, 300, 300, 200, 100)
    assert timeline.during == (200, 300, 430, 400, 400, 300, 300, 200)
    assert timeline.seconds == 1 + 3 * (2 + 4)
    assert timeline.compute_seconds == 19


def test_a_loop_whose_transfers_take_longer_is_bound_by_them():
    moves = (Offload(buffer(2)), Release(buffer(2)), Prefetch(buffer(2)), Arrive(buffer(2)))
    body = (compute(2), *moves, Free(buffer(2)))
    assert run(Loop("r", 3, body)).seconds == 3 * (1 + 1.5 + 1.5)
    beside = (compute(2), moves[0], compute(7), *moves[1:], Free(buffer(2)), Free(buffer(7)))
    timeline = run(Loop("r", 3, beside))
    assert timeline.seconds == 3 * (1 + 8 + 1.5)
    assert (timeline.out_seconds, timeline.host_peak) == (4.5, 100)


OUT = (Offload(buffer(2)), Release(buffer(2)))
TWICE = (Free(buffer(4)), Free(buffer(4)))
LOOP_OF_17 = Loop("r", 2, ())
for _ in range(16):
    LOOP_OF_17 = Loop("r", 2, (LOOP_OF_17,))


@pytest.mark.parametrize(
    ("steps", "what", "got"),
    [
        ((Free(buffer(2)),), "a buffer has no bytes where it is freed", "a, run 0"),
        ((Free(buffer(0)),), "a buffer of the caller is freed", "w, run 0"),
        (
            (compute(2), Free(buffer(2)), Free(buffer(2))),
            "a buffer has no bytes where it is freed",
            "a, run 0",
        ),
        ((compute(2), compute(2)), "a run is computed twice", "a, run 0"),
        ((compute(3),), "a view or an unknown node is computed", "node 3"),
        (
            (compute(4, 0, Reuse(0, Value(3), "donate")),),
            "a buffer has no bytes where its bytes are taken to donate",
            "a, run 0",
        ),
        ((compute(2), Prefetch(buffer(2))), "a buffer is on the device where it is prefetched", "a, run 0"),
        (
            (compute(2), *OUT, compute(2, 1), Prefetch(buffer(2))),
            "an older run is prefetched",
            "a, run 0",
        ),
        ((Loop("r", 2, (Offload(buffer(0)),)),), "a buffer from outside is offloaded", "w, run 0"),
        (
            (compute(2), Offload(buffer(2)), Offload(buffer(2))),
            "a buffer is on its way to the host where it is offloaded",
            "a, run 0",
        ),
        ((Commit(1),), "an input is committed that has no new value", "input 1"),
        ((Commit(0),), "a buffer has no bytes where it is committed", "new, run 0"),
        ((LOOP_OF_17,), "a loop cannot be simulated", "2 parts at depth 17"),
        ((Loop("r", 0, ()),), "a loop cannot be simulated", "0 parts at depth 1"),
        (
            (compute(2), *OUT, Loop("r", 2, (Prefetch(buffer(2)),))),
            "a buffer is prefetched in another loop",
            "a, run 0",
        ),
        (
            (Loop("r", 2, (compute(2), *OUT)),),
            "a buffer is moved in a loop and outlives it",
            "a, run 0",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(steps, what, got):
    with pytest.raises(PlanError) as caught:
        run(*steps)
    assert (caught.value.what, caught.value.got) == (what, got)
    assert caught.value.where.startswith("step ")
