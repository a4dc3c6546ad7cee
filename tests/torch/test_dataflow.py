"""Random programs of branches and loops: interpreter, emitted program, printed dataflow and Python agree."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._higher_order_ops import while_loop

from peakfold.bridge.capture import capture_inference
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.runtime.interpret import interpret, interpret_dataflow, operator_of
from peakfold.bridge.runtime.measure import peak_bytes
from peakfold.bridge.runtime.source import load_source
from peakfold.cost.costs import Costs
from peakfold.errors import PlanError
from peakfold.graph.dataflow.form import Dataflow, Merge, dataflow
from peakfold.graph.dataflow.run import DEAD, run
from peakfold.graph.dataflow.text import print_dataflow
from peakfold.ir.plan import Plan
from peakfold.ir.text import parse_graph, print_graph
from peakfold.plan.check import check_graph, require_legal
from peakfold.plan.fission.derived import Derived
from peakfold.plan.fission.program import planned

LENGTH = 3
UNARY = ("sin", "neg", "abs", "relu")
BINARY = ("add", "mul", "maximum")

places = st.integers(0, 3)
leaves = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(UNARY), places),
    st.tuples(st.just("binary"), st.sampled_from(BINARY), places, places),
    st.tuples(st.just("full")),
)
blocks = st.recursive(
    st.lists(leaves, max_size=3),
    lambda inner: st.lists(
        st.one_of(
            leaves,
            st.tuples(st.just("cond"), places, inner, inner),
            st.tuples(st.just("while"), st.integers(0, 3), inner),
        ),
        max_size=3,
    ),
    max_leaves=12,
)


def evaluate(block, before, cond, loop):
    """Run a block on what is there so far; the last value is what it gives."""
    env = list(before)

    def at(place):
        return env[-1 - place % len(env)]

    for kind, *rest in block:
        if kind == "unary":
            env.append(getattr(torch, rest[0])(at(rest[1])))
        elif kind == "binary":
            env.append(getattr(torch, rest[0])(at(rest[1]), at(rest[2])))
        elif kind == "full":
            env.append(torch.full((LENGTH,), 0.5))
        elif kind == "cond":
            place, then, other = rest
            sides = [lambda v, b=b, e=tuple(env): evaluate(b, [*e, v], cond, loop) for b in (then, other)]
            env.append(cond(at(place).sum() > 0, *sides, (at(place + 1),)))
        else:
            env.append(passes(rest[0], rest[1], tuple(env), cond, loop))
    return env[-1]


def passes(times, block, env, cond, loop):
    def body(i, v):
        return i + 1, evaluate(block, [*env, v], cond, loop)

    def test(i, v):
        return (i < times) & (v.abs().sum() < 50)

    return loop(test, body, (torch.zeros((), dtype=torch.int64), env[-1]))[1]


def python_cond(predicate, then, other, operands):
    return (then if predicate else other)(*operands)


def python_loop(test, body, carried):
    while test(*carried):
        carried = body(*carried)
    return carried


class Program(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x, y):
        return evaluate(self.block, [x, y], torch.cond, while_loop)


INNER = [("cond", 0, [("unary", "sin", 0), ("full",)], [("binary", "add", 0, 1)])]
NESTED = [
    ("cond", 1, [("while", 3, [*INNER, ("binary", "add", 0, 2)])], [("unary", "neg", 0), *INNER]),
    ("while", 2, [("cond", 0, INNER, [("unary", "abs", 1)])]),
    ("binary", "mul", 0, 1),
]
"""Both kinds inside of both kinds; its predicates hold for some seeds and not for others."""


TWICE = ("while", 2, [("while", 1, [("unary", "abs", 0), ("unary", "sin", 0)])])
LOOPS = [TWICE, ("binary", "maximum", 1, 0), TWICE]
"""Loops that are called alike, inside of others."""


@settings(max_examples=12, deadline=None)
@example(NESTED, 0)
@example(NESTED, 1)
@example(NESTED, 2)
@example(LOOPS, 144)
@example(INNER, 0)
@example(INNER, 1)
@given(blocks, st.integers(0, 1000))
def test_every_way_of_running_a_random_program_gives_the_same(block, seed):
    torch.manual_seed(seed)
    batch = tuple(torch.randn(LENGTH) for _ in range(2))
    graph = capture_inference(Program(block), batch).graph
    assert check_graph(graph) == []
    assert parse_graph(print_graph(graph)) == graph
    tensors = dict(zip((one.id for one in graph.inputs), batch, strict=True))
    expected = evaluate(block, batch, python_cond, python_loop)
    assert torch.equal(interpret(graph, tensors, {})[graph.outputs[0].value], expected)
    (flowed,) = interpret_dataflow(graph, tensors, {})
    assert torch.equal(flowed, expected)
    assert torch.equal(printed(graph)(*batch)[0], expected)
    nest = planned(Derived(graph, {}), Plan(graph.digest), lambda _: Costs({}, {}))
    for part in nest.nests():
        require_legal(part.graph, part.schedule)
    program = load_source(emit(nest.graph, nest.schedule, nest.timeline, bodies=nest.bodies))
    named = {one.name: tensor.clone() for one, tensor in zip(graph.inputs, batch, strict=True)}
    made = []
    resident = sum(tensor.nbytes for tensor in named.values())
    measured = peak_bytes(lambda: made.append(program(named, {})), resident=resident)
    assert torch.equal(made[-1][0], expected)
    assert all(torch.equal(a, b) for a, b in zip(named.values(), batch, strict=True))
    assert measured.peak_bytes <= nest.timeline.peak + SCRATCH


SCRATCH = 16
"""Bytes that a sum of a few numbers takes beside its result."""


def printed(graph):
    """Return the printed dataflow of a graph as a function."""
    found = {}

    def lifted(function, outputs=1):
        def call(*args, **kwargs):
            if any(arg is DEAD for arg in args):
                return DEAD if outputs == 1 else (DEAD,) * outputs
            return function(*args, **kwargs)

        return call

    class Operators:
        def __init__(self, name):
            self._name = name

        def __getattr__(self, part):
            return Operators(f"{self._name}.{part}")

        def __call__(self, *args, **kwargs):
            return lifted(operator_of(self._name))(*args, **kwargs)

    def switch(predicate, value):
        if predicate is DEAD or value is DEAD:
            return DEAD, DEAD
        return (DEAD, value) if predicate else (value, DEAD)

    def merge(first, second):
        if isinstance(first, tuple):
            return second() if DEAD in first else first
        assert first is DEAD or second is DEAD
        return second if first is DEAD else first

    def alive(wire, function):
        return lambda *args, **kwargs: DEAD if wire is DEAD else function(*args, **kwargs)

    program = dataflow(graph)
    names = SimpleNamespace(aten=Operators("aten"), torch=torch, switch=switch, merge=merge, alive=alive)
    found.update(vars(names))
    exec(compile(print_dataflow(program), "dataflow", "exec"), found)
    for loop in program.loops:
        found[loop.name] = lifted(found[loop.name], len(loop.leaves))
    return found["program"]


def test_a_branch_is_printed_as_switches_and_a_merge():
    class Net(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: torch.ones(3) - v, (x,))

    text = print_dataflow(dataflow(capture_inference(Net(), torch.zeros(3)).graph))
    assert text == (
        "def program(batch_0):\n"
        "    sum = aten.sum.default(batch_0)\n"
        "    gt = aten.gt.Scalar(sum, 0)\n"
        "    batch_0_else, batch_0_then = switch(gt, batch_0)\n"
        "    sin = aten.sin.default(batch_0_then)\n"
        "    gt_else, gt_then = switch(gt, gt)\n"
        "    ones = alive(gt_else, aten.ones.default)([3], device=torch.device('cpu'), pin_memory=False)\n"
        "    sub = aten.sub.Tensor(ones, batch_0_else)\n"
        "    cond = merge(sin, sub)\n"
        "    return (cond,)\n"
    )


def test_a_loop_is_printed_as_a_function_that_merges_with_itself():
    class Net(nn.Module):
        def forward(self, x, n):
            start = torch.zeros((), dtype=torch.int64)
            return while_loop(lambda i, v: i < n, lambda i, v: (i + 1, v.sin()), (start, x))[1]

    text = print_dataflow(dataflow(capture_inference(Net(), (torch.zeros(3), torch.tensor(2))).graph))
    assert text.startswith(
        "def while_loop_pass(zeros, batch_0, batch_1):\n"
        "    lt = aten.lt.Tensor(zeros, batch_1)\n"
        "    zeros_out, zeros_in = switch(lt, zeros)\n"
        "    batch_0_out, batch_0_in = switch(lt, batch_0)\n"
        "    batch_1_out, batch_1_in = switch(lt, batch_1)\n"
        "    add = aten.add.Tensor(zeros_in, 1)\n"
        "    sin = aten.sin.default(batch_0_in)\n"
        "    return merge((zeros_out, batch_0_out), lambda: while_loop_pass(add, sin, batch_1_in))\n"
    )


def test_a_merge_of_two_values_that_are_alive_is_refused():
    program = Dataflow(("a", "b"), (Merge("a", "b", "c"),), ("c",), ())
    with pytest.raises(PlanError, match="both sides of a merge are alive"):
        run(program, [1, 2], lambda node, values: values)


def test_what_is_not_chosen_is_not_run():
    class Net(nn.Module):
        def forward(self, x):
            def then(v):
                return torch.cond(v.mean() > 0, lambda w: w.exp() + torch.ones(3), lambda w: -w, (v,))

            return torch.cond(x.sum() > 0, then, lambda v: v.cos(), (x,))

    graph = capture_inference(Net(), torch.zeros(3)).graph
    ran = []

    def operator(node, values):
        ran.append(node.op.packet)
        name = {"gt": lambda x, y=0: x > 0}.get(node.op.packet)
        return [name(*values) if name else getattr(torch, node.op.packet)(*values)]

    run(dataflow(graph), [-torch.ones(3)], operator)
    assert ran == ["sum", "gt", "cos"]
