import gc
import linecache
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.torch.programs import dropout_step, plain_schedule

from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.codegen.header import Header
from peakfold.bridge.runtime import measure
from peakfold.bridge.runtime.source import load_source
from peakfold.cost.costs import Costs
from peakfold.errors import CacheError, PlanError
from peakfold.ir.graph import Graph, Input, Node, Op, Output, State, Value
from peakfold.ir.plan import Buffer, Commit, Compute, Free, Loop, Reuse, Run, Schedule
from peakfold.ir.types import ScalarType, tensor
from peakfold.plan.schedule.simulate import simulate

GOLDEN = Path(__file__).parents[1] / "golden" / "codegen"


def given():
    torch.manual_seed(0)
    tensors = {"fc.weight": torch.randn(4, 3), "fc.bias": torch.randn(4), "x": torch.randn(2, 3)}
    return tensors, {"lr": 0.1}


def eager(tensors, scalars):
    weight = torch.nn.Parameter(tensors["fc.weight"].clone())
    hidden = torch.nn.functional.linear(tensors["x"], weight, tensors["fc.bias"]).relu()
    loss = torch.nn.functional.dropout(hidden, 0.5).sum()
    loss.backward()
    torch.optim.SGD([weight], lr=scalars["lr"]).step()
    return loss.detach(), weight.detach()


def recomputing(graph: Graph) -> Schedule:
    """The plain schedule, with everything that backward reads dropped and drawn again."""
    steps = list(plain_schedule(graph).steps)
    place = next(i for i, step in enumerate(steps) if step == Compute(Run(16)))
    drop = [step for step in steps[:place] if step != Free(Buffer(Value(11)))]
    drop.insert(drop.index(Compute(Run(12))) + 1, Free(Buffer(Value(11))))
    again = [
        Free(Buffer(Value(12))),
        Free(Buffer(Value(13, 1))),
        Compute(Run(11, 1)),
        Compute(Run(12, 1)),
        Free(Buffer(Value(11), 1)),
        Compute(Run(13, 1)),
        Free(Buffer(Value(13), 1)),
    ]
    renamed = {Free(Buffer(Value(12))): Free(Buffer(Value(12), 1)),
               Free(Buffer(Value(13, 1))): Free(Buffer(Value(13, 1), 1))}  # fmt: skip
    return Schedule((*drop, *again, *(renamed.get(step, step) for step in steps[place:])))


def in_place(graph: Graph) -> Schedule:
    """The plain schedule, with relu and its gradient written in place, and the weight updated in place."""
    reuses = {12: Reuse(0, Value(11), "donate"), 17: Reuse(0, Value(16), "donate"),
              21: Reuse(0, Value(0), "update")}  # fmt: skip
    gone = {Free(Buffer(Value(11))), Free(Buffer(Value(16))), Commit(0), Free(Buffer(Value(21)))}
    steps = [step for step in plain_schedule(graph).steps if step not in gone]
    return Schedule(
        tuple(
            Compute(step.run, (reuses[step.run.node],))
            if isinstance(step, Compute) and step.run.node in reuses
            else step
            for step in steps
        )
    )


SCHEDULES = {"plain": plain_schedule, "recompute": recomputing, "in_place": in_place}


@pytest.mark.parametrize("name", SCHEDULES)
def test_emitted_source_is_the_golden_one(name):
    graph = dropout_step()
    header = Header("Tiny", 1_000_000, 252, 300, 0.001, {"peakfold": "0.1.0"})
    schedule = SCHEDULES[name](graph)
    source = emit(graph, schedule, simulate(graph, Costs({}, {}), schedule), header)
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("PEAKFOLD_ACCEPT"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    assert source == file.read_text()


@pytest.mark.parametrize("name", SCHEDULES)
def test_emitted_source_computes_what_eager_does_bit_for_bit(name):
    graph = dropout_step()
    step = load_source(emit(graph, SCHEDULES[name](graph)))
    tensors, scalars = given()
    for seed in range(3):
        torch.manual_seed(seed)
        loss, weight = eager(tensors, scalars)
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        (found,) = step(tensors, scalars)
        assert torch.equal(found, loss)
        assert torch.equal(tensors["fc.weight"], weight)
        assert torch.equal(torch.get_rng_state(), after)


def test_it_runs_alone_in_a_process_without_peakfold(tmp_path):
    graph = dropout_step()
    (tmp_path / "program.py").write_text(emit(graph, recomputing(graph), None, Header('A "model"\\')))
    tensors, scalars = given()
    torch.save(tensors, tmp_path / "tensors.pt")
    code = (
        "import sys, torch, program\n"
        "tensors = torch.load('tensors.pt')\n"
        "torch.manual_seed(1)\n"
        "loss, = program.step(tensors, {'lr': 0.1})\n"
        "assert not any(name.startswith('peakfold') for name in sys.modules)\n"
        "print(loss.item(), tensors['fc.weight'].sum().item())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    torch.manual_seed(1)
    loss, weight = eager(tensors, scalars)
    assert done.stdout.split() == [str(loss.item()), str(weight.sum().item())]


def test_margin_totals_are_the_bytes_that_live():
    graph = dropout_step()
    schedule = recomputing(graph)
    tensors, scalars = given()
    before = sum(tensor.nbytes for tensor in tensors.values())
    step = load_source(emit(graph, schedule, marks=True))
    curve = measure.live_curve(lambda: step(tensors, scalars, measure.mark), before)
    margins = [
        line.rpartition("|")[2].strip()
        for line in emit(graph, schedule, marks=True).splitlines()
        if "|" in line and "# --" not in line
    ]
    computed = [live for live, step_ in zip(curve, schedule.steps, strict=True) if not _host(graph, step_)]
    assert margins == [f"{live} B" for live in computed]


def _host(graph, step):
    return isinstance(step, Compute) and graph.node[step.run.node].is_host


def test_views_of_several_outputs_lists_and_special_numbers():
    half = tensor(2, 2, strides=(4, 1))
    graph = Graph(
        (Input(0, "class", "batch", tensor(2, 4)), Input(1, "2x", "scalar", ScalarType("float"))),
        (
            Node(2, "split", Op("aten.split.Tensor"), (Value(0), 2, 1), (), (half, half), (Value(0),) * 2),
            Node(3, "cat", Op("aten.cat.default"), ((Value(2, 1), Value(2)), 1), (), (tensor(2, 4),),
                 (None,)),
            Node(4, "torch", Op("aten.clamp.default"), (Value(3), float("-inf"), Value(1)), (),
                 (tensor(2, 4),), (None,)),
            Node(5, "topk", Op("aten.topk.default"), (Value(4), 1), (),
                 (tensor(2, 1), tensor(2, 1, dtype="int64")), (None, None)),
        ),
        (Output("a", Value(4)), Output("b", Value(2, 1)), Output("c", Value(5))),
    )  # fmt: skip
    step = load_source(emit(graph, plain_schedule(graph)))
    x = torch.arange(8.0).reshape(2, 4)
    a, b, c = step({"class": x}, {"2x": 4.0})
    assert torch.equal(a, torch.cat([x[:, 2:], x[:, :2]], 1).clamp(max=4.0))
    assert torch.equal(b, x[:, 2:])
    assert torch.equal(c, a.amax(1, keepdim=True))


def test_host_numbers_are_computed_as_python_does():
    number = ScalarType("float")
    graph = Graph(
        (Input(0, "x", "batch", tensor(3)), Input(1, "beta", "scalar", number)),
        (
            Node(2, "t", Op("aten._local_scalar_dense.default"), (Value(0),), (), (number,), (None,)),
            Node(3, "p", Op("host.pow"), (-0.5, Value(1)), (), (number,), (None,)),
            Node(4, "y", Op("aten.mul.Tensor"), (Value(0), Value(3)), (), (tensor(3),), (None,)),
        ),
        (Output("y", Value(4)),),
    )
    graph = replace(graph, nodes=graph.nodes[1:])
    (y,) = load_source(emit(graph, plain_schedule(graph)))({"x": torch.ones(3)}, {"beta": 2.0})
    assert y.tolist() == [0.25] * 3


def test_a_chain_of_three_thousand_nodes_is_emitted():
    ops = [
        Node(i, f"n{i}", Op("aten.neg.default"), (Value(i - 1),), (), (tensor(1),), (None,))
        for i in range(1, 3_001)
    ]
    graph = Graph((Input(0, "x", "batch", tensor(1)),), tuple(ops), (Output("y", Value(3_000)),))
    (y,) = load_source(emit(graph, plain_schedule(graph)))({"x": torch.ones(1)}, {})
    assert y.item() == 1.0


def test_a_schedule_that_reads_what_was_freed_is_refused():
    graph = dropout_step()
    steps = list(plain_schedule(graph).steps)
    steps.insert(1, Free(Buffer(Value(11))))
    with pytest.raises(PlanError, match=r"fc\.addmm is read where it does not exist"):
        emit(graph, Schedule(tuple(steps)))


def test_a_buffer_freed_twice_is_refused():
    graph = dropout_step()
    steps = (*plain_schedule(graph).steps, Free(Buffer(Value(11))))
    with pytest.raises(PlanError, match="is freed that does not live"):
        emit(graph, Schedule(steps))


def test_a_loop_is_refused():
    graph = dropout_step()
    with pytest.raises(PlanError, match="a loop step cannot be emitted"):
        emit(graph, Schedule((Loop("batch", 2, ()),)))


def test_an_unknown_operator_is_named():
    node = Node(1, "y", Op("aten.no_such_thing.default"), (Value(0),), (), (tensor(2),), (None,))
    graph = Graph((Input(0, "x", "batch", tensor(2)),), (node,), (Output("y", Value(1)),))
    with pytest.raises(PlanError, match=r"got: 'aten\.no_such_thing\.default'"):
        emit(graph, plain_schedule(graph))


def test_a_reuse_without_an_in_place_form_is_refused():
    graph = dropout_step()
    schedule = Schedule((Compute(Run(11), (Reuse(0, Value(2), "donate"),)),))
    with pytest.raises(PlanError, match=r"fc\.addmm cannot be written into x"):
        emit(graph, schedule)


@pytest.mark.parametrize("text", ["def step(:", "x = 1"])
def test_source_that_cannot_be_used_is_a_cache_error(text):
    with pytest.raises(CacheError, match="the source of a step cannot be used"):
        load_source(text)


def test_update_keeps_the_users_storage():
    graph = Graph(
        (Input(0, "w", "parameter", tensor(3)),),
        (Node(1, "new", Op("aten.mul.Tensor"), (Value(0), 2.0), (), (tensor(3),), (None,)),),
        (),
        (State(0, Value(1)),),
    )
    schedule = Schedule((Compute(Run(1), (Reuse(0, Value(0), "update"),)),))
    w = torch.nn.Parameter(torch.ones(3))
    pointer = w.data_ptr()
    assert load_source(emit(graph, schedule))({"w": w}, {}) == ()
    assert w.tolist() == [2.0] * 3
    assert w.data_ptr() == pointer


def test_the_lines_of_a_source_go_with_its_functions():
    source = "def step(tensors, scalars):\n    return (tensors['gone'],)\n"
    one, other = load_source(source), load_source(source)
    name = one.__code__.co_filename
    del one
    gc.collect()
    assert linecache.getline(name, 2).strip() == "return (tensors['gone'],)"
    names = list(linecache.cache)
    del other
    gc.collect()
    assert not linecache.getline(name, 2)
    assert all(name in linecache.cache for name in names)
