"""torch.cond and while_loop: captured, planned, emitted, equal."""

import copy

import pytest
import torch
from tests.torch.capture_support import equal_steps
from torch import nn
from torch._higher_order_ops import while_loop

import peakfold
from peakfold.bridge.capture import capture_inference, capture_step
from peakfold.bridge.capture.eager_memory import eager_memory
from peakfold.bridge.capture.intercept import in_python
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.runtime.measure import peak_bytes
from peakfold.bridge.runtime.source import load_source
from peakfold.cost.costs import Costs
from peakfold.errors import CaptureError
from peakfold.ir.control import COND, WHILE
from peakfold.ir.plan import Compute, Plan, Recompute, Run
from peakfold.ir.recompute import why_not_again
from peakfold.ir.text import parse_graph, print_graph
from peakfold.plan.check import check_graph, require_legal
from peakfold.plan.fission.derived import Derived
from peakfold.plan.fission.program import planned
from peakfold.plan.memory.layout import lay_out
from peakfold.plan.memory.lifetimes import predicted_nest
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate

FREE = Costs({}, {})


class Sides(nn.Module):
    """One side is wide, the other is not; both read what is outside."""

    def __init__(self):
        super().__init__()
        self.wide, self.plain = nn.Linear(8, 32), nn.Linear(8, 8)

    def forward(self, x):
        h = x.cos()

        def wide(v):
            y = torch.cat([self.wide(v), h, v * 2], 1).relu()
            return (y.sum(1, keepdim=True) * h).t(), y.mean()

        y, m = torch.cond(x.sum() > 0, wide, lambda v: (self.plain(v).t(), v.mean()), (h,))
        return y * 2 + m


class Passes(nn.Module):
    """A loop whose pass branches, and that reads what is outside."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, n):
        h = x.reshape(6, 8).cos()

        def body(i, y):
            z = torch.cond(i % 2 == 0, lambda v: self.layer(v).relu(), lambda v: v * h, (y,))
            return i + 1, z

        start = torch.zeros((), dtype=torch.int64)
        i, y = while_loop(lambda i, y: i < n, body, (start, x.reshape(6, 8).sin()))
        return y * 2, i


def nest_of(graph):
    nest = planned(Derived(graph, {}), Plan(graph.digest), lambda _: FREE)
    for part in nest.nests():
        require_legal(part.graph, part.schedule)
    return nest


def emitted(captured):
    nest = nest_of(captured.graph)
    return load_source(emit(nest.graph, nest.schedule, nest.timeline, bodies=nest.bodies)), nest


def tensors_of(module, *batch):
    named = {name: p.detach() for name, p in module.named_parameters()}
    return named | {f"batch.{i}": leaf for i, leaf in enumerate(batch)}


def bodies(graph, op):
    (node,) = (node for node in graph.nodes if node.op.name == op)
    return node.bodies


def test_a_branch_is_a_node_with_two_graphs_and_is_written_and_read():
    graph = capture_inference(Sides(), torch.zeros(6, 8)).graph
    assert check_graph(graph) == []
    assert parse_graph(print_graph(graph)) == graph
    then, other = bodies(graph, COND)
    assert [given.name for given in then.inputs] == [given.name for given in other.inputs]
    assert {node.op.packet for node in then.nodes} > {"cat", "relu", "sum"}
    assert {node.op.packet for node in other.nodes} == {"t", "addmm", "mean"}


def test_the_digest_covers_what_is_inside():
    def graph(factor):
        class Net(nn.Module):
            def forward(self, x):
                return torch.cond(x.sum() > 0, lambda v: v * factor, lambda v: -v, (x,))

        return capture_inference(Net(), torch.zeros(3)).graph

    assert graph(2.0).digest == graph(2.0).digest != graph(3.0).digest


@pytest.mark.parametrize("sign", [1, -1])
def test_both_sides_are_as_in_eager(sign):
    torch.manual_seed(0)
    module = Sides()
    program, _ = emitted(capture_inference(module, torch.zeros(6, 8)))
    x = torch.rand(6, 8) * sign
    (y,) = program(tensors_of(module, x), {})
    with torch.no_grad():
        assert torch.equal(y, module(x))


def test_the_bytes_are_those_of_the_larger_side():
    module = Sides()
    program, nest = emitted(capture_inference(module, torch.zeros(6, 8)))
    measured = {}
    for sign in (1, -1):
        given = tensors_of(module, torch.rand(6, 8) * sign)
        resident = sum(tensor.nbytes for tensor in given.values())
        measured[sign] = peak_bytes(lambda given=given: program(given, {}), resident=resident).peak_bytes
    assert measured[1] > measured[-1]
    assert nest.timeline.peak == measured[1]


def test_the_arena_is_that_of_the_larger_side():
    nest = nest_of(capture_inference(Sides(), torch.zeros(6, 8)).graph)
    trace = predicted_nest(nest)
    (node,) = (node for node in nest.graph.nodes if node.bodies)
    row = nest.timeline.steps.index(Compute(Run(node.id)))
    inside = [request for request in trace.requests if request.row == row and request.dies is not None]
    assert {"cat", "mul"} <= {request.name for request in inside}
    own = nest.timeline.peak - nest.timeline.resident
    given_out = sum(nest.graph.nbytes(value) for value in node.outputs)
    assert own <= trace.lower_bound <= own + given_out + 64 * len(inside)
    both = sum(body.timeline.peak - body.timeline.resident for body in nest.bodies[node.id])
    assert lay_out(trace).arena < trace.lower_bound + both - own


def two_sums(v):
    wide = v.repeat(64).sin(), v.repeat(64).cos()
    return v * (wide[0].sum() - wide[1].sum())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cond(x.sum() > 0, two_sums, lambda v: v * 2, (x,)),
        lambda x: while_loop(lambda v: v.abs().sum() > 1e9, lambda v: (two_sums(v),), (x,))[0],
    ],
)
def test_what_runs_inside_is_put_in_an_order_of_few_bytes(function):
    graph = capture_inference(Function(function), torch.zeros(50)).graph
    nest = nest_of(graph)
    (node,) = (node for node in graph.nodes if node.bodies)
    (inside,) = (body for body in nest.bodies[node.id] if len(body.graph.nodes) > 5)
    plain = simulate(inside.graph, FREE, lower(inside.graph, Plan(inside.graph.digest)))
    wide = 50 * 64 * 4
    assert plain.peak - plain.resident > 2 * wide
    assert inside.timeline.peak - inside.timeline.resident < plain.peak - plain.resident - wide / 2
    assert nest.timeline.peak < nest.timeline.resident + 2 * wide
    program = load_source(emit(nest.graph, nest.schedule, nest.timeline, bodies=nest.bodies))
    x = torch.rand(50)
    measured = peak_bytes(lambda: program({"batch.0": x}, {}), resident=x.nbytes).peak_bytes
    assert measured <= nest.timeline.peak + 64
    assert torch.equal(program({"batch.0": x}, {})[0], by_python(function, x))


@pytest.mark.parametrize("passes", [0, 1, 4])
def test_a_loop_is_as_in_eager_however_often_it_runs(passes):
    torch.manual_seed(0)
    module, x, n = Passes(), torch.randn(8, 6), torch.tensor(passes)
    captured = capture_inference(module, (torch.zeros(8, 6), torch.tensor(0)))
    assert check_graph(captured.graph) == []
    assert parse_graph(print_graph(captured.graph)) == captured.graph
    assert len(bodies(captured.graph, WHILE)) == 2
    program, nest = emitted(captured)
    given = tensors_of(module, x, n)
    found = []
    resident = sum(tensor.nbytes for tensor in given.values())
    measured = peak_bytes(lambda: found.append(program(given, {})), resident=resident).peak_bytes
    with torch.no_grad():
        expected = module(x, n)
    assert all(torch.equal(a, b) for a, b in zip(found[-1], expected, strict=True))
    assert measured == nest.timeline.peak if passes else measured <= nest.timeline.peak


def test_a_training_step_equals_eager_bit_for_bit_on_both_sides():
    torch.manual_seed(0)
    model = Sides()
    for sign in (1, -1):
        batch = (torch.rand(6, 8) * sign,)
        equal_steps(
            capture_step,
            copy.deepcopy(model),
            lambda m, x: m(x).square().mean(),
            lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
            batch,
        )


def test_the_whole_way_is_proved_equal_and_names_the_barrier():
    torch.manual_seed(0)
    model = Sides()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = peakfold.optimize_step(
        model, lambda m, x: m(x).square().mean(), optimizer, (torch.rand(6, 8),), iterations=20
    )
    assert step.report.equal.ok
    assert step.report.equal.bit_equal
    assert step.report.barriers == (COND,)
    assert "if gt_1:" in step.source
    assert "else:" in step.source


def test_a_predicate_that_no_input_has_a_part_in_chooses_when_captured():
    class Net(nn.Module):
        def forward(self, x):
            return torch.cond(torch.ones(()) > 0, lambda v: v.sin(), lambda v: v.cos(), (x,))

    graph = capture_inference(Net(), torch.zeros(3)).graph
    assert [node.op.packet for node in graph.nodes] == ["sin"]


def test_numbers_drawn_in_a_branch_are_those_of_eager():
    class Net(nn.Module):
        def forward(self, x):
            y = torch.dropout(x, 0.5, True)
            z = torch.cond(x.sum() > 0, lambda v: torch.dropout(v, 0.5, True), lambda v: v * 1, (y,))
            return torch.dropout(z, 0.5, True)

    captured = capture_inference(Net(), torch.zeros(50))
    program, _ = emitted(captured)
    for x in (torch.ones(50), -torch.ones(50)):
        torch.manual_seed(3)
        (y,) = program({"batch.0": x}, {})
        torch.manual_seed(3)
        assert torch.equal(y, Net()(x))


def test_a_loop_may_swap_what_it_carries():
    def swapped(x):
        start = (torch.zeros((), dtype=torch.int64), x, x.t())
        return while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b, a), start)[1:]

    captured = capture_inference(Function(swapped), torch.zeros(4, 4))
    program, _ = emitted(captured)
    x = torch.randn(4, 4)
    first, second = program({"batch.0": x}, {})
    assert torch.equal(first, x.t())
    assert torch.equal(second, x)


def by_python(function, x):
    with in_python():
        return function(x)


def test_control_flow_runs_again_where_a_plan_says_so():
    def late(x):
        y = torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (x,))
        z = while_loop(lambda v: v.sum() > 1, lambda v: (v * 0.5,), (x,))[0]
        return (y.exp() * z.exp()).tanh() + y * z

    graph = capture_inference(Function(late), torch.zeros(5)).graph
    kept = {node.op.name: node for node in graph.nodes}
    use = kept["aten.mul.Tensor"]
    again = tuple(Recompute(kept[name].id, use.id) for name in (COND, WHILE))
    plan = Plan(graph.digest, recompute=tuple(sorted(again)))
    schedule = lower(graph, plan)
    require_legal(graph, schedule)
    assert sum(isinstance(step, Compute) and step.run.k for step in schedule.steps) == 2
    source = emit(graph, schedule)
    assert source.count("while True:") == 2
    for x in (torch.rand(5), -torch.rand(5)):
        assert torch.equal(load_source(source)({"batch.0": x}, {})[0], by_python(late, x))


def test_what_draws_inside_of_a_branch_is_not_computed_again():
    def drawing(x):
        y = torch.cond(x.sum() > 0, lambda v: torch.dropout(v, 0.5, True), lambda v: v.cos(), (x,))
        return y.exp().sum() + y

    graph = capture_inference(Function(drawing), torch.zeros(5)).graph
    (node,) = (node for node in graph.nodes if node.bodies)
    assert why_not_again(graph)[node.id] == "it draws random numbers inside of control flow"


def test_regions_go_around_control_flow():
    torch.manual_seed(0)
    module, x = Sides(), torch.rand(64, 8)
    step = peakfold.optimize_inference(module, (x,), iterations=5, fission=True)
    assert step.report.equal.ok
    assert step.report.barriers == (COND,)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def branch(then, other):
    return Function(lambda x: torch.cond(x.sum() > 0, then, other, (x,)))


def loop(test, body, *carried):
    return Function(lambda x: while_loop(test, body, (*carried, x)))


@pytest.mark.parametrize(
    ("module", "what", "got"),
    [
        (
            branch(lambda v: v, lambda v: v.sum(0)),
            "the branches of torch.cond return tensors of different shapes or types",
            "(float32[4, 4]) and (float32[4])",
        ),
        (
            branch(lambda v: v, lambda v: (v, v)),
            "the branches of torch.cond return tensors of different shapes or types",
            "(float32[4, 4]) and (float32[4, 4], float32[4, 4])",
        ),
        (
            branch(lambda v: v.double(), lambda v: v),
            "the branches of torch.cond return tensors of different shapes or types",
            "(float64[4, 4]) and (float32[4, 4])",
        ),
        (
            branch(lambda v: v.add_(1), lambda v: v),
            "a branch or loop writes into a tensor from outside of it",
            "an in-place operator on a tensor of shape (4, 4)",
        ),
        (branch(lambda v: 3, lambda v: 4), "a branch or loop returns something else than tensors", "int"),
        (
            loop(lambda v: v.sum() > 0, lambda v: (v.sum(0),)),
            "a pass of while_loop is given and returns tensors of different shapes or types",
            "(float32[4, 4]) and (float32[4])",
        ),
        (
            loop(lambda i, v: i < 3, lambda i, v: (i + 1, v), 0),
            "while_loop carries something else than tensors",
            "a int",
        ),
        (
            loop(lambda v: v > 0, lambda v: (v,)),
            "the condition of while_loop is none",
            "torch.bool of shape (4, 4)",
        ),
    ],
)
def test_bad_control_flow_names_its_line(module, what, got):
    with pytest.raises(CaptureError) as caught:
        capture_inference(module, torch.zeros(4, 4))
    assert caught.value.what == what
    assert caught.value.got == got
    assert "test_control.py:" in caught.value.where


def test_keyed_numbers_are_refused():
    module = branch(lambda v: v.sin(), lambda v: v.cos())
    with pytest.raises(CaptureError) as caught:
        capture_inference(module, torch.zeros(4), keyed=True)
    assert caught.value.what == "torch.cond is captured with numbers drawn from torch's stream alone"
    assert caught.value.expected == "rng='eager'"


def test_the_memory_of_eager_is_predicted_over_both_sides():
    torch.manual_seed(0)
    model, batch = Sides(), (torch.rand(64, 8),)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(m, x):
        return m(x).square().mean()

    found = eager_memory(model, loss, optimizer, batch)
    assert found.steps.count("cat") == 2
    assert found.steps.count("plain.addmm") == 1
    wide = 64 * (32 + 8 + 8) * 4
    assert found.peak_bytes > sum(p.nbytes for p in model.parameters()) + batch[0].nbytes + wide
