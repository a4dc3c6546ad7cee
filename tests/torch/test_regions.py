"""Programs with regions: what is derived computes the same, and holds the bytes that were simulated."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from peakfold.bridge.capture import capture_step
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.runtime.interpret import interpret
from peakfold.bridge.runtime.measure import live_curve, mark
from peakfold.bridge.runtime.source import load_source
from peakfold.cost.costs import Costs
from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Compute, Plan, Region, Run
from peakfold.ir.regions import candidates
from peakfold.ir.text import parse_plan, print_plan
from peakfold.ops.inplace import LOOP, reusable_operands
from peakfold.pipeline import prove
from peakfold.pipeline.exact import Precise
from peakfold.pipeline.program import Program, emit_plan
from peakfold.pipeline.task import Task
from peakfold.plan.check import check_graph, require_legal
from peakfold.plan.fission.derive import Splitter, derive
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.program import Nest, outer_plan, planned
from peakfold.plan.fission.widest import widest
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.chains import chain
from peakfold.plan.schedule.frame import frame
from peakfold.workloads import build

FREE = Costs({}, {})


def axis(graph: Graph, name: str):
    return next(axis for axis in components(graph) if axis.name == name)


def batch_plan(graph: Graph, parts: int, name: str = "batch") -> Plan:
    whole = prepare(graph)
    return Plan(graph.digest, regions=(Region(name, parts, widest(whole, axis(whole, name))),))


def task_of(name: str, **options) -> tuple[Task, Graph]:
    task = Task.of(build(name, "tiny", **options))
    return task, task.capture().graph


def split_program(task: Task, plan_of) -> Program:
    captured = task.capture()
    return emit_plan(captured, plan_of(captured.graph), FREE)


def agree(task: Task, plan_of) -> float:
    """Return the error in float64 of a program against eager; the plan is made in float64 too."""
    program = split_program(task, plan_of)
    for nest in program.nest.nests():
        assert not check_graph(nest.graph)
    double = Precise(task, prove.STEPS).of(program)
    assert double is not None
    found = prove.watch(double.task, double.program, "float64")
    equality = prove.judge(double.original, found, precision="float64")
    assert equality.ok, (equality.worst, equality.max_error)
    return equality.max_error


# --- the seven workloads ---------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 4])
def test_a_step_of_bert_split_along_the_batch_is_equal(parts):
    task, _ = task_of("bert", optimizer="adamw", dropout=0.1)
    agree(task, lambda one: batch_plan(one, parts))


@pytest.mark.parametrize("name", ["vit", "unet", "unetpp", "gptneo", "btlm"])
def test_every_workload_without_batch_normalization_is_split_along_its_batch(name):
    task, _ = task_of(name, optimizer="adamw", dropout=0.1)
    agree(task, lambda one: batch_plan(one, 2))


def test_measured_bytes_are_those_that_were_simulated_at_every_line():
    task, _ = task_of("bert", optimizer="adamw", dropout=0.1)
    program = split_program(task, lambda graph: batch_plan(graph, 2))
    expected = list(marks_of(program.nest))
    nest = program.nest
    marked = load_source(emit(nest.graph, nest.schedule, nest.timeline, marks=True, loops=nest.loops))
    step = prove.make_step(task, program)
    bound = step._programs[0]
    step(*task.batch)
    tensors, scalars = bound._binder.fetch(pytree.tree_leaves((tuple(task.batch), {})))
    marked(tensors, scalars, mark)
    resident = task.resident(program.captured.binding.constants)
    assert list(live_curve(lambda: marked(tensors, scalars, mark), resident)) == expected


def marks_of(nest: Nest, base: int = 0):
    """Yield the bytes that live after each step of a program, those of each part of a loop included."""
    for row, step in enumerate(nest.timeline.steps):
        if isinstance(step, Compute) and step.run.node in nest.loops:
            repeat = nest.loops[step.run.node]
            yield base + nest.timeline.live[row]
            outside = base + nest.timeline.live[row] - repeat.nest.timeline.resident
            for _ in repeat.body.starts:
                yield from marks_of(repeat.nest, outside)
        yield base + nest.timeline.live[row]


# --- small programs, any regions -------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm, self.drop = (
            nn.Linear(6, 12),
            nn.Linear(12, 6),
            nn.LayerNorm(6),
            nn.Dropout(0.3),
        )

    def forward(self, x):
        return self.norm(x + self.drop(self.b(functional.gelu(self.a(x)))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)).softmax(-1)
        return x + self.out((scores @ v).transpose(1, 2).reshape(n, t, c))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(11, 6), Attention(), nn.Linear(6, 11)

    def forward(self, tokens):
        return self.head(self.body(self.table(tokens)))


class Classes(nn.Module):
    """Few tokens, each one of many classes."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(40, 6), nn.Linear(6, 40)

    def forward(self, tokens):
        return self.head(torch.tanh(self.table(tokens)))


class Queries(nn.Module):
    """One query over many keys."""

    def __init__(self):
        super().__init__()
        self.query, self.kv, self.out = nn.Parameter(torch.randn(1, 6)), nn.Linear(6, 12), nn.Linear(6, 6)

    def forward(self, x):
        key, value = self.kv(x).chunk(2, -1)
        return self.out((self.query @ key.transpose(-2, -1)).softmax(-1) @ value)


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.norm, self.head = nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = functional.max_pool2d(torch.relu(self.norm(self.one(x))), 2)
        return self.head(self.two(x).mean((2, 3)))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.two(torch.relu(self.norm(self.one(x))))


class Tied(nn.Module):
    """Its table is read first and last, as an embedding that is the head too."""

    def __init__(self):
        super().__init__()
        self.table, self.middle = nn.Embedding(20, 6), nn.Linear(6, 6)

    def forward(self, tokens):
        return functional.linear(torch.tanh(self.middle(self.table(tokens))), self.table.weight)


def _squares(model, x, y):
    return functional.mse_loss(model(x), y)


def _labels(model, x, y):
    out = model(x)
    return functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))


def programs() -> dict[str, tuple]:
    torch.manual_seed(0)
    return {
        "mlp": (Mlp(), _squares, (torch.randn(7, 6), torch.randn(7, 6))),
        "attention": (Attention(), _squares, (torch.randn(4, 5, 6), torch.randn(4, 5, 6))),
        "words": (Words(), _labels, (torch.randint(11, (4, 5)), torch.randint(11, (4, 5)))),
        "classes": (Classes(), _labels, (torch.randint(40, (1, 2)), torch.randint(40, (1, 2)))),
        "queries": (Queries(), _squares, (torch.randn(2, 32, 6), torch.randn(2, 1, 6))),
        "image": (Image(), _labels, (torch.randn(6, 2, 8, 8), torch.randint(3, (6,)))),
        "normed": (Normed(), _labels, (torch.randn(9, 6), torch.randint(3, (9,)))),
        "tied": (Tied(), _labels, (torch.randint(20, (4, 12)), torch.randint(20, (4, 12)))),
    }


def captured(name: str) -> tuple[Graph, dict[int, torch.Tensor], dict[int, float]]:
    model, loss, batch = programs()[name]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    graph = capture_step(model, loss, optimizer, batch).graph
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    named |= {f"batch.{i}": tensor for i, tensor in enumerate(batch)}
    generator = torch.Generator().manual_seed(3)
    tensors, scalars = {}, {}
    for item in graph.inputs:
        if item.kind == "scalar":
            scalars[item.id] = 0.1
        elif item.name in named:
            tensors[item.id] = named[item.name].detach().clone()
        else:
            tensors[item.id] = torch.rand(item.type.shape, generator=generator)
    return graph, tensors, scalars


GRAPHS = {name: captured(name) for name in programs()}


def any_region(draw, graph: Graph) -> Region | None:
    """A region of some stretch of a graph along some axis."""
    chosen = draw(st.sampled_from([found for found in components(graph) if found.length > 1]))
    nodes = [ident for ident in candidates(graph) if graph.node[ident].origin.phase != "update"]
    begin = draw(st.integers(0, len(nodes) - 1))
    end = draw(st.integers(begin, len(nodes) - 1) | st.just(len(nodes) - 1))
    runs = widest(graph, chosen, nodes[begin : end + 1])
    size = -(-chosen.length // draw(st.integers(2, min(chosen.length, 5))))
    return Region(chosen.name, -(-chosen.length // size), runs) if runs else None


def in_two(graph: Graph, region: Region) -> tuple[Region, ...]:
    """A region as a loop of the forward, and one of the backward in which the forward is computed again."""
    nodes = [graph.node[run.node] for run in region.runs]
    forward = [Run(node.id) for node in nodes if node.origin.phase == "forward" and node.inputs]
    backward = [run for run in region.runs if run not in forward]
    again = [Run(run.node, 1) for run in forward]
    if not forward or not backward:
        return (region,)
    return replace(region, runs=tuple(forward)), replace(region, runs=tuple(sorted((*backward, *again))))


@st.composite
def split_programs(draw) -> tuple[str, Plan]:
    name = draw(st.sampled_from(sorted(GRAPHS)))
    graph = GRAPHS[name][0]
    whole = prepare(graph)
    region = any_region(draw, whole)
    if region is None:
        return name, Plan(graph.digest)
    regions = in_two(whole, region) if draw(st.booleans()) else (region,)
    try:
        bodies = list(derive(whole, regions).bodies.values())
    except PlanError:
        regions = (region,)
        bodies = list(derive(whole, regions).bodies.values())
    inner = any_region(draw, bodies[-1].part) if draw(st.booleans()) and bodies[-1].is_even else None
    if inner is not None:
        regions = (*regions[:-1], replace(regions[-1], plan=Plan(bodies[-1].part.digest, regions=(inner,))))
    return name, Plan(graph.digest, regions=regions)


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_a_loop_of_the_backward_computes_the_forward_again(name):
    graph = GRAPHS[name][0]
    (region,) = batch_plan(graph, 2, "sequence" if name == "classes" else "batch").regions
    regions = in_two(prepare(graph), region)
    assert len(regions) == 2
    same_results(name, Plan(graph.digest, regions=regions))


@settings(max_examples=150, deadline=None)
@given(split_programs())
def test_any_region_computes_what_the_whole_does(case):
    same_results(*case)


def same_results(name: str, plan: Plan) -> None:
    """Check a plan: its text, its graphs, and what its graphs and its emitted program compute."""
    graph, tensors, scalars = GRAPHS[name]
    if not plan.regions:
        return
    derived = derive(prepare(graph), plan.regions)
    assert not check_graph(derived.graph)
    nest = planned(derived, outer_plan(plan, derived), lambda _: FREE)
    for inner in nest.nests():
        assert not check_graph(inner.graph)
        require_legal(inner.graph, inner.schedule)
    assert parse_plan(print_plan(plan, graph, splitter=Splitter()), graph, Splitter()) == plan
    torch.manual_seed(1)
    expected = interpret(graph, tensors, scalars)
    torch.manual_seed(1)
    found = interpret(derived.graph, tensors, scalars, derived.bodies)
    for pair, other in zip(graph.state, derived.graph.state, strict=True):
        torch.testing.assert_close(found[other.output], expected[pair.output], atol=1e-5, rtol=1e-4)
    emitted = load_source(emit(nest.graph, nest.schedule, nest.timeline, loops=nest.loops))
    given = {item.name: tensors[item.id].clone() for item in graph.inputs if item.id in tensors}
    numbers = {item.name: scalars[item.id] for item in graph.inputs if item.id in scalars}
    torch.manual_seed(1)
    results = emitted(given, numbers)
    torch.testing.assert_close(results[0], expected[graph.outputs[0].value], atol=1e-5, rtol=1e-4)
    for pair in graph.state:
        new = given[graph.input[pair.input].name]
        torch.testing.assert_close(new, expected[pair.output], atol=1e-5, rtol=1e-4)


# --- sums that go on ------------------------------------------------------------------------------


def tied_plan(parts: int, inner: int) -> Plan:
    """The step in parts of the batch, and the head in parts of the sequence inside them; 1: it is not."""
    graph = GRAPHS["tied"][0]
    plan = batch_plan(graph, parts)
    (body,) = derive(prepare(graph), plan.regions).bodies.values()
    part = body.part
    along = next(one for one in components(part) if one.length == 12)
    head = [
        i
        for i in candidates(part)
        if "embedding" not in part.node[i].op.name and "middle" not in part.node[i].name
    ]
    states = {Value(pair.input) for pair in part.state}
    sums = [
        n.id for n in part.nodes if n.op.name == "aten.addmm.default" and n.args[0] in states and n.id in head
    ]
    runs = tuple(Run(i) for i in sorted({run.node for run in widest(part, along, head)} | {*sums}))
    nested = Plan(part.digest, regions=(Region(along.name, inner, runs),)) if inner > 1 else None
    return replace(plan, regions=(replace(plan.regions[0], plan=nested),))


@pytest.mark.parametrize("inner", [1, 3, 4])
def test_a_weight_that_is_read_twice_has_one_sum(inner):
    graph = GRAPHS["tied"][0]
    plan = tied_plan(2, inner)
    found = derive(prepare(graph), plan.regions)
    (body,) = found.bodies.values()
    table = next(given.id for given in graph.inputs if given.name == "table.weight")
    kind = graph.type(Value(table))
    firsts = [node for node in body.graph.nodes if node.op.name in ("aten.addmm.default", LOOP)]
    begun = [
        n for n in firsts for w in reusable_operands(body.graph, n) if body.graph.type(w.operand) == kind
    ]
    assert [node.op.name for node in begun] == [LOOP if inner > 1 else "aten.addmm.default"]
    tables = tabulate(body.graph, FREE)
    assert not frame(tables).droppable[tables.step_of[begun[0].id]]
    assert chain(tables, *(tables.index(v) for v in ends_of(body, kind)))
    nest = planned(found, outer_plan(plan, found), lambda _: FREE)
    text = emit(nest.graph, nest.schedule, nest.timeline, loops=nest.loops)
    assert text.count("zeros([20, 6]") == 1
    same_results("tied", plan)


@pytest.mark.parametrize("inner", [1, 3])
def test_bytes_of_a_sum_that_goes_on_are_those_that_were_simulated_at_every_line(inner):
    graph, tensors, scalars = GRAPHS["tied"]
    plan = tied_plan(2, inner)
    found = derive(prepare(graph), plan.regions)
    nest = planned(found, outer_plan(plan, found), lambda _: FREE)
    marked = load_source(emit(nest.graph, nest.schedule, nest.timeline, marks=True, loops=nest.loops))
    given = {item.name: tensors[item.id].clone() for item in graph.inputs if item.id in tensors}
    numbers = {item.name: scalars[item.id] for item in graph.inputs if item.id in scalars}
    marked(given, numbers, mark)
    curve = list(live_curve(lambda: marked(given, numbers, mark), nest.timeline.resident))
    assert curve == list(marks_of(nest))


def ends_of(body, kind) -> tuple[Value, Value]:
    """The state of a part of this type, and its new value."""
    return next(
        (Value(pair.input), pair.output) for pair in body.graph.state if body.graph.type(pair.output) == kind
    )


# --- what borders are written with -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_add_in_place_what_they_add_apart(dtype):
    generator = torch.Generator().manual_seed(0)
    total, left, right = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((3, 5, 4), (3, 5, 6), (3, 6, 4))
    )
    apart = torch.ops.aten.baddbmm.default(total, left, right)
    assert torch.equal(torch.ops.aten.baddbmm_.default(total.clone(), left, right), apart)
    apart = torch.ops.aten.addmm.default(total[0], left[0], right[0])
    assert torch.equal(torch.ops.aten.addmm_.default(total[0].clone(), left[0], right[0]), apart)
