"""State that is updated in several steps stays in its own bytes."""

import numpy as np
import pytest

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Input, Node, Op, Origin, Output, State, Value
from peakfold.ir.plan import Commit, Compute, Plan
from peakfold.ir.types import tensor
from peakfold.plan.check import check_schedule
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.bound import peak_bound
from peakfold.plan.schedule.code import encode, scratch
from peakfold.plan.schedule.decode import decode
from peakfold.plan.schedule.frame import frame
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate

KIND = tensor(256)
BYTES = 1024


def node(ident, name, *operands, phase="update"):
    values = tuple(Value(operand) for operand in operands)
    return Node(
        ident, f"n{ident}", Op(f"aten.{name}"), values, (), (KIND,), (None,), origin=Origin(phase=phase)
    )


def momentum(*, late_reader=False):
    """A buffer that is scaled, then added to; with a reader of the old value after that, if asked for."""
    inputs = tuple(Input(i, name, "optimizer", KIND) for i, name in enumerate(("buf", "grad")))
    nodes = [node(2, "mul.Tensor", 0, 1), node(3, "add.Tensor", 2, 1)]
    if late_reader:
        nodes.append(node(4, "mul.Tensor", 0, 3))
    outputs = (Output("last", Value(nodes[-1].id)),) if late_reader else ()
    return Graph(inputs, tuple(nodes), outputs, (State(0, Value(3)),))


def test_a_chain_takes_no_bytes_and_no_copy():
    graph = momentum()
    schedule = lower(graph, Plan(graph.digest))
    assert [[reuse.kind for reuse in step.reuses] for step in schedule.steps] == [["update"], ["update"]]
    assert check_schedule(graph, schedule) == []
    assert simulate(graph, Costs({}, {}), schedule).peak == 2 * BYTES


def test_the_old_value_is_kept_for_a_reader_after_it():
    graph = momentum(late_reader=True)
    schedule = lower(graph, Plan(graph.digest))
    assert any(isinstance(step, Commit) for step in schedule.steps)
    kinds = {reuse.kind for step in schedule.steps if isinstance(step, Compute) for reuse in step.reuses}
    assert "update" not in kinds
    assert check_schedule(graph, schedule) == []


@pytest.mark.parametrize("late_reader", [False, True])
def test_decoding_and_the_bound_agree_with_the_schedule(late_reader):
    graph = momentum(late_reader=late_reader)
    tables = tabulate(graph, Costs({}, {}))
    peak = simulate(graph, Costs({}, {}), lower(graph, Plan(graph.digest))).peak
    placed = frame(tables)
    code = encode(placed)
    keep_all = np.zeros(placed.gaps + tables.steps, np.int16)
    outcome = decode(code, scratch(code), keep_all, 0.0, 1.0)
    assert outcome.peak == peak
    assert peak_bound(tables) <= peak
