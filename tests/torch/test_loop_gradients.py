"""Training steps through while_loop: gradients as torch's, in bytes that do not depend on the passes."""

import pytest
import torch
from tests.torch.capture_support import equal_steps
from tests.torch.test_arena_control import both, served
from tests.torch.test_control import emitted, tensors_of
from tests.torch.test_dataflow import LENGTH, evaluate
from torch import nn
from torch._higher_order_ops import while_loop

import peakfold
from peakfold.bridge.capture import capture_step
from peakfold.bridge.capture.intercept import in_python
from peakfold.bridge.runtime.measure import peak_bytes
from peakfold.errors import CaptureError
from peakfold.pipeline.task import Task


class Recurrent(nn.Module):
    """As many passes as the batch says; what they read is outside of them, and a count is carried too."""

    def __init__(self):
        super().__init__()
        self.first, self.again = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, n):
        h, scale = self.first(x), x.cos()

        def pass_(i, v):
            return i + 1, (self.again(v) * scale).tanh()

        return while_loop(lambda i, v: i < n, pass_, (torch.zeros((), dtype=torch.int64), h))[1]


class Branching(nn.Module):
    """A pass that branches, in a branch."""

    def __init__(self):
        super().__init__()
        self.first, self.one, self.two = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        def pass_(i, v):
            sides = (lambda w: self.one(w).sin(), lambda w: self.two(w).tanh())
            return i + 1, torch.cond(i % 2 == 0, *sides, (v,))

        def loop(v):
            return while_loop(lambda i, v: i < 3, pass_, (torch.zeros((), dtype=torch.int64), v))[1]

        return torch.cond(x.sum() > 0, loop, lambda v: self.one(v), (self.first(x),))


def loss(model, *batch):
    return model(*batch).square().mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("passes", [1, 4])
def test_a_step_is_bit_for_bit_that_of_eager(passes):
    torch.manual_seed(0)
    equal_steps(capture_step, Recurrent(), loss, sgd, (torch.rand(3, 4), torch.tensor(passes)))


def as_python(model, *batch):
    """Loss and gradients where Python's own if and while run."""
    with in_python():
        found = loss(model, *batch)
    parameters = list(model.parameters())
    if not found.requires_grad:
        return found, [torch.zeros_like(one) for one in parameters]
    gradients = torch.autograd.grad(found, parameters, allow_unused=True)
    pairs = zip(gradients, parameters, strict=True)
    return found, [torch.zeros_like(one) if gradient is None else gradient for gradient, one in pairs]


def agree(program, model, *batch):
    found, *gradients = program(tensors_of(model, *batch), {})
    expected, wanted = as_python(model, *batch)
    assert torch.equal(found, expected)
    torch.testing.assert_close(gradients, wanted)


def test_gradients_are_those_of_the_passes_written_out():
    torch.manual_seed(0)
    model = Recurrent()
    program, _ = emitted(capture_step(model, loss, None, (torch.zeros(3, 4), torch.tensor(0))))
    for passes in (0, 1, 3, 5):
        agree(program, model, torch.rand(3, 4), torch.tensor(passes))


def test_the_bytes_do_not_depend_on_the_number_of_passes():
    model = Recurrent()
    program, nest = emitted(capture_step(model, loss, None, (torch.zeros(3, 4), torch.tensor(0))))
    measured = set()
    for passes in (1, 2, 9):
        given_ = tensors_of(model, torch.rand(3, 4), torch.tensor(passes))
        resident = sum(tensor.nbytes for tensor in given_.values())
        measured.add(peak_bytes(lambda: program(given_, {}), resident=resident).peak_bytes)  # noqa: B023
    assert measured == {nest.timeline.peak}


@pytest.mark.parametrize("sign", [1, -1])
def test_loops_in_branches_and_branches_in_loops_have_gradients(sign):
    torch.manual_seed(0)
    model, x = Branching(), torch.rand(3, 4) * sign
    program, _ = emitted(capture_step(model, loss, None, (torch.zeros(3, 4),)))
    agree(program, model, x)


def test_the_whole_way_is_proved_and_runs_in_an_arena():
    torch.manual_seed(0)
    model, batch = Recurrent(), (torch.rand(3, 4), torch.tensor(3))
    step = peakfold.optimize_step(model, loss, sgd(model), batch, iterations=3)
    assert step.report.equal.bit_equal
    assert step.report.equal.max_error < 1e-12
    plain, inside, _, _ = both(Task(Recurrent(), loss, None, batch))
    for passes in (3, 0, 5):
        x = torch.rand(3, 4), torch.tensor(passes)
        assert torch.equal(served(inside, *x), plain(*x))


class Program(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block, self.weight = block, nn.Parameter(torch.full((LENGTH,), 0.7))

    def forward(self, x, y):
        return evaluate(self.block, [x * self.weight, y * self.weight], torch.cond, while_loop)


SIN = ("unary", "sin", 0)
PROGRAMS = [
    [("while", 3, [SIN, ("binary", "mul", 0, 2)])],
    [("while", 2, [SIN, ("while", 2, [("binary", "mul", 0, 1), SIN])])],
    [("cond", 0, [("while", 2, [SIN])], [("unary", "neg", 0)]), ("while", 0, [SIN])],
    [("while", 3, [("cond", 1, [SIN], [("binary", "add", 0, 1)])]), ("binary", "mul", 0, 1)],
]
"""Loops with each other and with branches, both ways."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block", PROGRAMS)
def test_gradients_of_nested_programs_are_those_of_python(block, seed):
    torch.manual_seed(seed)
    model, batch = Program(block), tuple(torch.randn(LENGTH) for _ in range(2))
    agree(emitted(capture_step(model, loss, None, batch))[0], model, *batch)


def bad(function):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return function(self, x)

    return Net()


@pytest.mark.parametrize(
    ("function", "what", "hint"),
    [
        (
            lambda m, x: while_loop(lambda v: v.sum() > 9, lambda v: (m.layer(v),), (x,))[0],
            "while_loop carries value 0, which needs a gradient after a pass alone",
            "begin with value.requires_grad_(), or write the passes out",
        ),
        (
            lambda m, x: while_loop(
                lambda v: v.sum() > 9, lambda v: (torch.dropout(v, 0.5, True),), (m.layer(x),)
            )[0],
            "a while_loop that needs a gradient draws random numbers",
            "draw them before the loop, and carry them or read them there",
        ),
    ],
)
def test_loops_that_torch_gives_no_right_gradients_for_are_refused(function, what, hint):
    with pytest.raises(CaptureError) as caught:
        capture_step(bad(function), lambda m, x: m(x).sum(), None, (torch.zeros(2, 4),))
    assert (caught.value.what, caught.value.hint) == (what, hint)
    assert "test_loop_gradients.py:" in caught.value.where


def test_torch_adds_up_the_last_pass_alone_where_the_first_value_needs_no_gradient():
    """Why that is refused; once this fails, torch does it right and so may we."""
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    gradients = []
    for start in (x, x.clone().requires_grad_()):
        layer.zero_grad()
        found = while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, layer(v)), (torch.tensor(0), start))[1]
        found.sum().backward()
        gradients.append(layer.bias.grad.clone())
    assert torch.equal(gradients[0], torch.ones(2))
    assert not torch.equal(gradients[1], gradients[0])


class Shared(nn.Module):
    """What is closed over is an operand too, or is made of something else that is closed over."""

    def __init__(self, way):
        super().__init__()
        self.way, self.weight = way, nn.Parameter(torch.tensor([0.3, 0.4, 0.5]))

    def forward(self, x):
        w = self.weight
        return self.way(x, x * w, w)


def twice(x, h, w):
    return torch.cond(x.sum() > 0, lambda v: v * h + h * h, lambda v: v.sin() + h, (h,))


def made_of(x, h, w):
    return torch.cond(x.sum() > 0, lambda v: v * h * w, lambda v: torch.stack([h, w]).sum(0) * v, (x,))


def given_back(x, h, w):
    return torch.cond(x.sum() > 0, lambda v: h * 1, lambda v: h, (w,)) * h


def inner(x, h, w):
    def side(v):
        return torch.cond(v.sum() > 1, lambda u: u * h * w, lambda u: u + h, (h,)) * v * w

    return torch.cond(x.sum() > 0, side, lambda v: v * h, (h,))


def looped(x, h, w):
    start = (torch.zeros((), dtype=torch.int64), h)
    return while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * h * w + w), start)[1] * h


@pytest.mark.parametrize("way", [twice, made_of, given_back, inner, looped])
@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_read_in_two_ways_has_its_gradient_once(way, sign):
    torch.manual_seed(0)
    model, x = Shared(way), torch.rand(3) * sign
    agree(emitted(capture_step(model, loss, None, (x,)))[0], model, x)


@pytest.mark.parametrize("way", [twice, made_of, looped])
def test_and_every_bit_of_it_is_that_of_eager(way):
    torch.manual_seed(0)
    equal_steps(capture_step, Shared(way), loss, sgd, (torch.rand(3),))
