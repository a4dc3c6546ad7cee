"""What users' own code does around and inside a step."""

import random
import threading

import numpy
import pytest
import torch
from torch import nn

import peakfold
from peakfold.bridge.capture import capture_step
from peakfold.bridge.capture.functional import functional
from peakfold.errors import CaptureError

ROWS, WIDTH = 32, 16


pytestmark = pytest.mark.usefixtures("own_cache")


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))


def reasons(step, *x):
    """Why each program does not hold, for the message of a test."""
    return [program.broken(x) for program in step._programs]


def squared(model, x):
    return model(x).square().mean()


def setting(prepare=lambda model, optimizer: None, lr=0.1, **kwargs):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, **kwargs)
    prepare(model, optimizer)
    return model, optimizer


def batch():
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def optimized(model, loss_fn, optimizer, x, **kwargs):
    return peakfold.optimize_step(
        model, loss_fn, optimizer, x, **{"iterations": 50, "time_budget": 2, **kwargs}
    )


def assert_as_eager(prepare=lambda model, optimizer: None, between=None, loss_fn=squared, steps=4, **kwargs):
    """Optimize and verify, then train beside the eager loop; every bit must agree after each step."""
    (model, optimizer), (twin, twin_optimizer) = setting(prepare), setting(prepare)
    step = optimized(model, loss_fn, optimizer, (batch(),), **kwargs)
    for index in range(steps):
        if between is not None:
            between(index, model, optimizer)
            between(index, twin, twin_optimizer)
        mine, theirs = batch(), batch()
        loss = step(mine)
        torch.clear_autocast_cache()
        expected = loss_fn(twin, theirs)
        expected.backward()
        twin_optimizer.step()
        twin_optimizer.zero_grad()
        assert torch.equal(loss, expected)
        assert torch.equal(mine, theirs)
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(a, b)
    return step


def test_a_batch_that_the_model_writes_in_place_is_written():
    def loss_fn(model, x):
        return squared(model, x.add_(1.0))

    assert_as_eager(loss_fn=loss_fn)


def test_autocast_around_the_whole_loop():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_as_eager()


def clip_given(model, optimizer):
    def clip(given, args, kwargs):
        nn.utils.clip_grad_norm_(given.param_groups[0]["params"], 0.01)

    optimizer.register_step_pre_hook(clip)


def halve_gradient(model, optimizer):
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)


def halve_after(model, optimizer):
    def halve(parameter):
        parameter.grad.mul_(0.5)

    model[0].weight.register_post_accumulate_grad_hook(halve)


@pytest.mark.parametrize("hook", [clip_given, halve_gradient, halve_after])
def test_hooks_on_gradients_and_updates_are_verified_and_run(hook):
    assert_as_eager(hook)


@pytest.mark.parametrize("hook", [halve_gradient, halve_after])
def test_a_hook_on_a_gradient_that_is_added_later_is_seen(hook):
    def between(index, model, optimizer):
        if index == 2:
            hook(model, optimizer)

    assert_as_eager(between=between, verify=False)


def test_a_loss_that_closes_over_the_model_is_verified():
    model, optimizer = setting()
    step = optimized(model, lambda given, x: model(x).square().mean(), optimizer, (batch(),))
    assert step.report.equal.ok
    assert all(parameter.grad is None for parameter in model.parameters())


def test_parameters_that_come_to_lie_otherwise_are_seen():
    def between(index, model, optimizer):
        if index == 1:
            model[0].weight.data = model[0].weight.data.t().contiguous().t()

    step = assert_as_eager(between=between, verify=False)
    assert len(step._programs) == 2, reasons(step, batch())


def test_parameters_that_come_to_share_memory_are_seen():
    model, optimizer = setting()
    model.append(nn.Linear(1, 1))
    step = optimized(model, squared, optimizer, (batch(),), verify=False)
    model[3].weight.data = model[2].bias.data.view(1, 1)
    with pytest.raises(CaptureError, match="same memory"):
        step(batch())


def test_a_layer_replaced_in_the_optimizer_too():
    model, optimizer = setting(momentum=0.9)
    step = optimized(model, squared, optimizer, (batch(),), verify=False)
    step(batch())
    model[2] = nn.Linear(WIDTH, 1)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    before = model[2].weight.clone()
    step(batch())
    assert not torch.equal(before, model[2].weight)


SCALES = numpy.array([1.0, 2.0])


def held_by_the_model(model):
    model.scales = SCALES.copy()
    return lambda m, x: squared(m, x) * float(m.scales.sum()), model.scales


def held_by_a_closure(model):
    scales = SCALES.copy()
    return lambda m, x: squared(m, x) * float(scales.sum()), scales


@pytest.mark.parametrize("held", [held_by_the_model, held_by_a_closure])
def test_an_array_that_is_read_is_compared_by_its_elements(held):
    model, optimizer = setting(lr=0.0)
    loss_fn, scales = held(model)
    step = optimized(model, loss_fn, optimizer, (batch(),), verify=False)
    first = step(batch())
    scales[:] = SCALES.copy()
    assert step(batch()) == first
    assert len(step._programs) == 1, reasons(step, batch())
    scales[0] = 4.0
    assert step(batch()) == 2 * first


def test_an_array_in_the_place_of_another():
    model, optimizer = setting(lr=0.0)
    loss_fn, _ = held_by_the_model(model)
    step = optimized(model, loss_fn, optimizer, (batch(),), verify=False)
    first = step(batch())
    model.scales = 2 * SCALES
    assert step(batch()) == 2 * first


@pytest.mark.parametrize("draw", [random.random, numpy.random.rand])
def test_numbers_that_python_draws_are_refused(draw):
    model, optimizer = setting()
    with pytest.raises(CaptureError, match="draws from Python's"):
        optimized(model, lambda m, x: squared(m, x) * draw(), optimizer, (batch(),))


PYTHONS = {
    "random": lambda x: x * random.random(),
    "randint": lambda x: x * random.randint(1, 3),
    "gauss": lambda x: x * random.gauss(0.0, 1.0),
    "choice": lambda x: x * random.choice((1.0, 2.0)),
    "shuffle": lambda x: (random.shuffle([1, 2, 3]), x)[1],
    "seed": lambda x: (random.seed(5), x)[1],
}


@pytest.mark.parametrize("name", PYTHONS)
def test_the_line_that_draws_from_python_is_named(name):
    code = PYTHONS[name].__code__
    before = random.getstate()
    with pytest.raises(CaptureError, match="draws from Python's random") as caught:
        capture_step(nn.Linear(4, 4), lambda m, x: PYTHONS[name](m(x)).mean(), None, (torch.ones(2, 4),))
    assert caught.value.where.startswith(f"{code.co_filename}:{code.co_firstlineno}: ")
    assert random.getstate() == before


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.settings = small(), type("Settings", (), {})()
        self.settings.scale = 1.0

    def forward(self, x):
        return self.inner(x) * getattr(self.settings, "scale")  # noqa: B009


def test_an_attribute_read_by_getattr_is_guarded():
    torch.manual_seed(0)
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step = optimized(model, squared, optimizer, (batch(),), verify=False)
    first = step(batch())
    model.settings.scale = 2.0
    assert step(batch()) == 4 * first


def test_a_default_that_is_changed_is_guarded():
    def loss_fn(model, x, weights={"scale": 1.0}):  # noqa: B006
        return squared(model, x) * weights["scale"]

    model, optimizer = setting(lr=0.0)
    step = optimized(model, loss_fn, optimizer, (batch(),), verify=False)
    first = step(batch())
    loss_fn.__defaults__[0]["scale"] = 2.0
    assert step(batch()) == 2 * first


def test_views_made_in_place_whose_functional_overload_has_another_name():
    def loss_fn(model, x):
        return model(x).transpose_(0, 1).square().mean()

    assert_as_eager(loss_fn=loss_fn)


def test_a_power_in_place():
    """``pow.Scalar`` takes a number to the power of a tensor, ``pow_.Scalar`` the other way round."""

    def loss_fn(model, x):
        return model(x).mul(2).pow_(2).mean()

    assert_as_eager(loss_fn=loss_fn)


def test_what_an_in_place_operator_writes_takes_the_same_arguments():
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten) if name.endswith("_")]
    overloads = [getattr(p, o) for p in packets if hasattr(p, "overloads") for o in p.overloads()]
    pairs = [(op, functional(op)) for op in overloads if op._schema.is_mutable]
    assert len(pairs) > 300
    for op, pure in pairs:
        both = [[str(a.type) for a in one._schema.arguments] for one in (op, pure) if one is not None]
        assert both[0] == both[-1], op


def test_an_operator_with_an_opaque_workspace_is_not_run_on_made_up_bytes():
    from peakfold.bridge.runtime.profile import _takes_opaque

    class Node:
        class op:
            name = "aten._cudnn_rnn_backward.default"

    assert _takes_opaque(Node)


def test_a_module_that_runs_in_another_thread_is_not_followed():
    other = small()
    x = batch()

    def loss_fn(model, x):
        worker = threading.Thread(target=lambda: other[0](torch.ones(1, WIDTH)))
        worker.start()
        worker.join()
        return squared(model, x)

    graph = capture_step(small(), loss_fn, None, (x,)).graph
    assert all(node.origin.module in ("", "0", "1", "2") for node in graph.nodes)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_hook_that_clips_values_of_the_models_own_parameters(optimizer):
    models = [small(), small()]
    optimizers = [optimizer(model.parameters(), lr=0.1) for model in models]
    for model, own in zip(models, optimizers, strict=True):
        own.register_step_pre_hook(
            lambda o, a, k, model=model: nn.utils.clip_grad_value_(model.parameters(), 1e-4)
        )
    step = optimized(models[0], squared, optimizers[0], (batch(),))
    for _ in range(3):
        step(batch())
        squared(models[1], batch()).backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_a_model_that_keeps_a_weight_which_it_computes_is_verified(norm):
    """copy.deepcopy refuses such a tensor: it is no leaf."""
    model = nn.Sequential(norm(small()[0]), nn.GELU(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = optimized(model, squared, optimizer, (batch(),))
    assert step.report.equal.bit_equal
