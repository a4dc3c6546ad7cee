"""What each damage to a graph, plan or schedule is called."""

from dataclasses import replace

import pytest
from tests.torch.programs import dropout_step, plain_schedule

from peakfold.errors import PlanError
from peakfold.ir.graph import Op, State, Value
from peakfold.ir.plan import (
    Arrive,
    Buffer,
    Commit,
    Compute,
    Free,
    Loop,
    Offload,
    Plan,
    Prefetch,
    Recompute,
    Release,
    Reuse,
    Run,
    Schedule,
)
from peakfold.ir.types import tensor
from peakfold.plan.check import check_graph, check_plan, check_schedule, require_legal
from peakfold.plan.schedule.lower import lower

GRAPH = dropout_step()
PLAIN = list(plain_schedule(GRAPH).steps)


def said(found):
    return "\n".join(str(item) for item in found)


def changed(ident, **fields):
    nodes = tuple(replace(node, **fields) if node.id == ident else node for node in GRAPH.nodes)
    return replace(GRAPH, nodes=nodes)


@pytest.mark.parametrize(
    ("graph", "answer"),
    [
        (changed(12, id=11), "11: this id is there 2 times"),
        (changed(12, name="x"), "x: this name is there 2 times"),
        (
            changed(12, args=(Value(16),)),
            "relu: it reads Value(node=16, index=0), which nothing above it makes",
        ),
        (changed(12, args=(Value(11, 1),)), "relu: it reads Value(node=11, index=1), which nothing above it"),
        (changed(12, aliases=()), "relu: it has 1 types and 0 aliases"),
        (changed(12, aliases=(Value(2),)), "relu: an output shares the storage of Value(node=2, index=0)"),
        (changed(12, types=(tensor(2, 4, strides=(4,)),)), "relu: 2 dimensions have 1 strides"),
        (changed(13, stream=None), "it is random, without a position in the random stream"),
        (changed(12, stream=3), "relu: it is not random, with a position in the random stream"),
        (replace(GRAPH, state=(State(0, Value(14)),)), "fc.weight: TensorType"),
        (replace(GRAPH, state=(State(99, Value(21)),)), "state: 99 is no input"),
        (
            replace(GRAPH, state=(State(0, Value(77)),)),
            "state: the new value Value(node=77, index=0) is made by",
        ),
        (replace(GRAPH, state=GRAPH.state * 2), "state: input 0 is replaced 2 times"),
        (replace(GRAPH, outputs=GRAPH.outputs * 2), "loss: this output is there 2 times"),
    ],
)
def test_a_graph(graph, answer):
    assert answer in said(check_graph(graph))


def test_random_nodes_draw_in_order():
    nodes = list(GRAPH.nodes)
    drop = next(i for i, node in enumerate(nodes) if node.id == 13)
    nodes.insert(drop, replace(nodes[drop], id=50, name="drop_2", stream=4))
    assert "it draws 0, drop_2 above it 4" in said(check_graph(replace(GRAPH, nodes=tuple(nodes))))


@pytest.mark.parametrize(
    ("plan", "answer"),
    [
        (Plan("other"), "plan: it is for graph other, this is"),
        (Plan(GRAPH.digest, (Recompute(13, 16), Recompute(12, 17))), "its recomputes are not sorted"),
        (Plan(GRAPH.digest, (Recompute(99, 16),)), "it names node 99, which is not there"),
        (
            Plan(GRAPH.digest, (Recompute(14, 16),)),
            "loss: it cannot be computed again: the program returns it",
        ),
        (Plan(GRAPH.digest, order=(11, 12)), "order: it does not name every node that is no view once"),
        (
            Plan(GRAPH.digest, order=(12, 11, 13, 14, 15, 16, 17, 19, 20, 21)),
            "relu: it stands before fc.addmm, which it reads",
        ),
    ],
)
def test_a_plan(plan, answer):
    assert answer in said(check_plan(GRAPH, plan))


def at(step):
    return PLAIN.index(step)


def without(step):
    return [item for item in PLAIN if item != step]


def before(ident, *steps):
    place = at(Compute(Run(ident)))
    return [*PLAIN[:place], *steps, *PLAIN[place:]]


def with_reuse(ident, reuse, gone=()):
    steps = [Compute(s.run, (reuse,)) if s == Compute(Run(ident)) else s for s in PLAIN]
    return [step for step in steps if step not in gone]


RELU, ADDMM = Buffer(Value(12)), Buffer(Value(11))
AWAY = (Offload(RELU), Release(RELU), Prefetch(RELU), Arrive(RELU))
STATE_AWAY = tuple(type(step)(Buffer(Value(0))) for step in AWAY)


def commit_while(step):
    place = at(Commit(0))
    return [*PLAIN[:place], step, *PLAIN[place:]]


def moved_as_new():
    steps = with_reuse(21, Reuse(0, Value(0), "update"), [Commit(0), Free(Buffer(Value(21)))])
    return [*steps, *(type(step)(Buffer(Value(21))) for step in AWAY)]


def updated_while(step):
    steps = with_reuse(21, Reuse(0, Value(0), "update"), [Commit(0), Free(Buffer(Value(21)))])
    return [step, *steps]


@pytest.mark.parametrize(
    ("steps", "answer"),
    [
        (without(Compute(Run(11))), "relu: it reads fc.addmm before it is computed"),
        (without(Compute(Run(11))), "fc.addmm: it is never run"),
        (without(Free(RELU)), "relu, run 0: it is never freed"),
        ([*PLAIN, Free(RELU)], "relu, run 0: it is freed where it has no bytes"),
        ([*PLAIN, Free(Buffer(Value(2)))], "x, run 0: it is freed, and its memory is an input's"),
        ([*PLAIN, Free(Buffer(Value(14)))], "the output loss: it reads loss after its bytes were given back"),
        (without(Commit(0)), "fc.weight: it does not hold its new value at the end"),
        ([*PLAIN, Commit(0)], "fc.weight: it is replaced twice"),
        ([*PLAIN, Commit(1)], "1: it is committed, and has no new value"),
        ([*PLAIN, Compute(Run(11, 1))], "fc.addmm: it reads fc.weight after it was replaced"),
        ([Compute(Run(11, 1)), *PLAIN], "fc.addmm: run 1 comes after 0 runs"),
        ([*PLAIN, Compute(Run(10))], "fc.t: it is a view, and never a step"),
        ([*PLAIN, Compute(Run(99))], "the graph has no such node"),
        (before(12, Free(ADDMM)), "relu: it reads fc.addmm after its bytes were given back or written over"),
        (with_reuse(12, Reuse(0, Value(11), "donate"), [Free(ADDMM)]), ""),
        (with_reuse(12, Reuse(0, Value(11), "donate")), "fc.addmm, run 0: it is freed where it has no bytes"),
        (with_reuse(12, Reuse(0, Value(11), "update"), [Free(ADDMM)]), "and that memory is the program's"),
        (with_reuse(12, Reuse(0, Value(2), "donate")), "aten.relu.default cannot write output 0 over"),
        (with_reuse(21, Reuse(0, Value(0), "update"), [Commit(0), Free(Buffer(Value(21)))]), ""),
        (with_reuse(21, Reuse(0, Value(0), "donate"), [Commit(0), Free(Buffer(Value(21)))]), "as donate"),
        (before(17, *AWAY[:2]), "relu.backward: it reads relu while it is on the host"),
        (before(17, *AWAY[:3]), "relu.backward: it reads relu while it is coming back"),
        (before(17, *AWAY), ""),
        (before(17, AWAY[0]), "relu, run 0: it is freed while it is leaving the device"),
        (before(17, AWAY[1]), "relu, run 0: it is on the device, and release needs it leaving the device"),
        (before(17, *AWAY[:2], AWAY[3]), "relu, run 0: it is on the host, and arrive needs it coming back"),
        ([Offload(RELU), *PLAIN], "relu, run 0: it is not there, and offload needs it on the device"),
        ([*STATE_AWAY, *PLAIN], ""),
        ([*STATE_AWAY[:2], *PLAIN], "fc.addmm: it reads fc.weight while it is on the host"),
        ([*PLAIN, *STATE_AWAY[:2]], "fc.weight, run 0: it is on the host at the end"),
        (commit_while(STATE_AWAY[0]), "fc.weight: it is replaced while it is leaving the device"),
        (moved_as_new(), "it is moved, and its bytes are those of an input"),
        (updated_while(STATE_AWAY[0]), "it writes over fc.weight while it is leaving the device"),
        ([Loop("batch", 2, tuple(PLAIN))], ""),
    ],
)  # fmt: skip
def test_a_schedule(steps, answer):
    found = said(check_schedule(GRAPH, Schedule(tuple(steps))))
    assert (answer in found) if answer else found == ""


def test_an_impure_node_runs_once():
    graph = changed(12, op=Op("mylib.log.default", pure=False))
    steps = PLAIN[: at(Compute(Run(12))) + 1]
    found = said(check_schedule(graph, Schedule((*steps, Compute(Run(12, 1))))))
    assert "relu: mylib.log.default is run again, and does more than compute" in found


def test_require_legal_says_the_first_violations():
    require_legal(GRAPH, lower(GRAPH, Plan(GRAPH.digest)))
    with pytest.raises(PlanError) as caught:
        require_legal(GRAPH, Schedule(()))
    message = str(caught.value)
    assert message.startswith("check: the program is not legal: 12 violations\n  at: fc.addmm\n")
    assert "fc.addmm: it is never run" in message
    assert "and 7 more" in message
    assert caught.value.exit_code == 2
