"""Random programs of branches and loops that need gradients: those of Python's own, in float64."""

from unittest.mock import Mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.torch.test_control import emitted, tensors_of
from tests.torch.test_loop_gradients import as_python, loss
from torch import nn
from torch._higher_order_ops import while_loop

from peakfold.bridge.capture import capture_inference, capture_step
from peakfold.errors import CaptureError

LENGTH = 3
UNARY = {
    "sin": torch.sin,
    "neg": torch.neg,
    "abs": torch.abs,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "cumsum": lambda v: v.cumsum(0) / LENGTH,
    "softmax": lambda v: v.softmax(0),
    "part": lambda v: v[1:2].expand(LENGTH),
    "detach": torch.detach,
}
BINARY = {
    "add": lambda a, b: (a + b) / 2,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a > b, a, b / 2),
    "outer": lambda a, b: torch.outer(a, b).mean(0),
    "write": lambda a, b: written(a.clone(), b),
}
"""Nothing here makes a number above 1 of numbers below it: sums in another order differ by rounding alone."""


def written(whole, other):
    whole[0] = other[1]
    return whole.mul_(0.5)


places, counts = st.integers(0, 5), st.integers(1, 3)
leaves = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(sorted(UNARY)), places),
    st.tuples(st.just("binary"), st.sampled_from(sorted(BINARY)), places, places),
    st.tuples(st.just("full")),
)


def of_depth(depth):
    if depth == 0:
        return st.lists(leaves, max_size=3)
    inner = of_depth(depth - 1)
    branch = st.tuples(st.just("cond"), places, inner, inner, counts)
    loop = st.tuples(st.just("while"), st.integers(0, 3), inner, counts)
    return st.lists(st.one_of(leaves, branch, loop), max_size=3)


def evaluate(block, before, count=1):
    """Run a block on what is there so far; its functions close over names that are bound anew later."""
    env = list(before)

    def at(place):
        return env[-1 - place % len(env)]

    for kind, *rest in block:
        if kind == "unary":
            env.append(UNARY[rest[0]](at(rest[1])))
        elif kind == "binary":
            env.append(BINARY[rest[0]](at(rest[1]), at(rest[2])))
        elif kind == "full":
            env.append(torch.full((LENGTH,), 0.5, dtype=torch.float64))
        elif kind == "cond":
            place, then, other, made = rest
            known = tuple(env)

            def first(v, w):
                return tuple(evaluate(then, [*known, v, w], made))  # noqa: B023

            def second(v, w):
                return tuple(evaluate(other, [*known, v, w], made))  # noqa: B023

            env += torch.cond(at(place).sum() > 0, first, second, (at(place + 1), at(place + 2)))
        else:
            times, inside, carried = rest
            known = tuple(env)

            def pass_(i, *values):
                return (i + 1, *evaluate(inside, [*known, *values], carried))  # noqa: B023

            def test(i, *values):
                return (i < times) & (values[0].sum() < 2)  # noqa: B023

            env += while_loop(test, pass_, (torch.zeros((), dtype=torch.int64), *env[-carried:]))[1:]
    return env[-count:]


class Program(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block
        self.w, self.v = (
            nn.Parameter(torch.tensor(x).double()) for x in ([0.7, -0.4, 0.9], [0.3, 0.8, -0.6])
        )

    def forward(self, x, y):
        (made,) = evaluate(self.block, [x, self.v, x * self.w, y * self.v])
        return made * self.w


def batch_of(seed):
    torch.manual_seed(seed)
    return tuple(torch.rand(LENGTH, dtype=torch.float64) * 2 - 1 for _ in range(2))


REBOUND = [
    ("while", 2, [("binary", "maximum", 1, 1)], 2),
    ("unary", "tanh", 0),
    ("while", 0, [("full",)], 1),
]
"""What the first loop's functions close over is bound anew before the backward pass."""
GIVEN_BACK = [("cond", 0, [], [], 3), ("unary", "abs", 2)]
"""Sides that give back, as they are, what they close over and what they are given."""
TURNED = [("while", 2, [("while", 1, [("unary", "sin", 2)], 2)], 3)]
"""Carried values take each other's places."""


@settings(max_examples=12, deadline=None)
@example(REBOUND, 0)
@example(GIVEN_BACK, 0)
@example(TURNED, 0)
@given(of_depth(2), st.integers(0, 1000))
def test_gradients_of_random_programs_are_those_of_python(block, seed):
    model, batch = Program(block), batch_of(seed)
    try:
        captured = capture_step(model, loss, None, batch)
    except CaptureError as refused:
        assert refused.what.endswith("which needs a gradient after a pass alone")  # noqa: PT017
        return
    program, _ = emitted(captured)
    names = [output.name for output in captured.graph.outputs]
    for sign in (1, -1):
        turned = tuple(x * sign for x in batch)
        found = dict(zip(names, program(tensors_of(model, *turned), {}), strict=True))
        value, wanted = as_python(model, *turned)
        assert torch.equal(found.pop(names[0]), value)
        for name, gradient in zip(("w", "v"), wanted, strict=True):
            made = found.pop(f"{name}.grad", torch.zeros(LENGTH).double())
            torch.testing.assert_close(made, gradient, rtol=1e-9, atol=1e-9)
        assert not found


class Layers(nn.Module):
    """A branch or loop for each layer: its functions close over the name of the layer."""

    def __init__(self, way):
        super().__init__()
        self.way, self.layers = way, nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

    def forward(self, x):
        x = self.layers[0](x)
        for layer in self.layers:

            def side(v):
                return layer(v).sin()  # noqa: B023

            x = self.way(side, x)
        return x


def a_branch(side, x):
    return torch.cond(x.sum() > 0, lambda v: side(v), lambda v: -side(v), (x,))


def a_loop(side, x):
    return while_loop(
        lambda i, v: i < 2, lambda i, v: (i + 1, side(v)), (torch.zeros((), dtype=torch.int64), x)
    )[1]


@pytest.mark.parametrize("way", [a_branch, a_loop])
def test_a_function_is_differentiated_as_it_was_when_it_was_called(way):
    torch.manual_seed(0)
    model, x = Layers(way), torch.rand(1, 2)
    program, _ = emitted(capture_step(model, loss, None, (x,)))
    value, wanted = as_python(model, x)
    found, *gradients = program(tensors_of(model, x), {})
    assert torch.equal(found, value)
    torch.testing.assert_close(gradients, wanted)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("turns", [1, 2])
def test_carried_values_take_each_others_places(turns):
    class Net(nn.Module):
        def forward(self, x, y, z):
            def pass_(i, *values):
                return (i + 1, *values[turns:], *(value.sin() for value in values[:turns]))

            return while_loop(lambda i, *values: i < 4, pass_, (torch.zeros((), dtype=torch.int64), x, y, z))[
                1:
            ]

    batch = tuple(torch.rand(LENGTH) for _ in range(3))
    program, _ = emitted(capture_inference(Net(), batch))
    wanted = list(batch)
    for _ in range(4):
        wanted = [*wanted[turns:], *(value.sin() for value in wanted[:turns])]
    assert all(map(torch.equal, program(tensors_of(nn.Module(), *batch), {}), wanted))


@pytest.mark.parametrize(("kind", "expected"), [("cond", [3, 5, 7, 9]), ("while", [4, 8, 13, 19])])
def test_capturing_does_not_double_with_each_level_of_nesting(kind, expected):
    def calls(depth):
        made = Mock()

        def nested(v, left):
            if left == 0:
                made()
                return v.sin()
            if kind == "cond":
                return torch.cond(v.sum() > 0, lambda u: nested(u, left - 1), lambda u: -u, (v,))
            start = (torch.zeros((), dtype=torch.int64), v)
            return while_loop(lambda i, u: i < 2, lambda i, u: (i + 1, nested(u, left - 1)), start)[1]

        layer = nn.Linear(2, 2)
        capture_step(layer, lambda m, x: nested(m(x), depth).sum(), None, (torch.ones(1, 2),))
        return made.call_count

    assert [calls(depth) for depth in range(1, 5)] == expected
