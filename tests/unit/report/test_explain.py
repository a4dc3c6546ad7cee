import pytest

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Input, Node, Op, Origin, Output, Value
from peakfold.ir.plan import Buffer, Compute, Free, Run, Schedule
from peakfold.ir.types import tensor
from peakfold.report.explain import live_at_peak


@pytest.fixture(scope="module")
def live(chain):
    return live_at_peak(chain.graph(), chain.schedule(again=True), chain.costs())


def test_live_tensors_add_up_to_the_peak(report):
    assert sum(tensor.nbytes for tensor in report.live_at_peak) == report.timelines.after.peak_bytes


def test_largest_first(live):
    sizes = [tensor.nbytes for tensor in live]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("name", "why", "freeing"),
    [
        ("x", "the batch that you passed", "cannot"),
        ("layers.0.weight", "a parameter: part of the model", "cannot"),
        ("layers.5.mm (again)", "in use now: read by layers.5.relu (again)", "cannot"),
        ("layers.5.relu (again)", "in use now: made by layers.5.relu (again)", "cannot"),
        ("layers.0.relu", "read by layers.1.mm (again), 19 operators later", "2.2 ms to compute it again"),
        (
            "layers.6.relu",
            "read by its relu_backward, 1 operator later",
            "2.2 ms to compute it again",
        ),
    ],
)
def test_reasons_and_prices(live, name, why, freeing):
    found = next(tensor for tensor in live if tensor.name == name)
    assert (found.why, found.freeing) == (why, freeing)


def test_the_price_counts_what_must_be_computed_on_the_way(live):
    """Beside layer 4's own two operators, layer 3's activation has been dropped by then."""
    found = next(tensor for tensor in live if tensor.name == "layers.4.relu")
    assert found.recompute_seconds == pytest.approx(4.4e-3)


def test_results_and_scratch_cannot_be_freed():
    def node(id, of):
        return Node(
            id, f"n{id}", Op("aten.exp.default"), (Value(of),), (), (tensor(10),), (None,), origin=Origin()
        )

    graph = Graph(
        (Input(0, "x", "batch", tensor(10)),),
        (node(1, 0), node(2, 0), node(3, 2)),
        (Output("y", Value(1)), Output("z", Value(3))),
    )
    schedule = Schedule((Compute(Run(1)), Compute(Run(2)), Compute(Run(3)), Free(Buffer(Value(2)))))
    live = live_at_peak(graph, schedule, Costs({}, {3: 8}))
    assert {tensor.name: (tensor.why, tensor.freeing) for tensor in live} == {
        "x": ("the batch that you passed", "cannot"),
        "n1": ("a result of the step", "cannot"),
        "n2": ("in use now: read by n3", "cannot"),
        "n3": ("in use now: made by n3", "cannot"),
        "scratch of n3": ("scratch that n3 takes while it runs", "cannot"),
    }


def test_an_empty_schedule_holds_what_is_resident():
    graph = Graph((Input(0, "x", "batch", tensor(10)),), (), (Output("y", Value(0)),))
    assert live_at_peak(graph, Schedule(()), Costs({}, {})) == ()
