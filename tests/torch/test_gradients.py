"""What a step leaves in ``.grad``, and what a skipped step leaves: as the loop that users write does."""

import copy

import pytest
import torch
from torch import nn

import peakfold
from peakfold.bridge.capture import capture_step
from peakfold.errors import CaptureError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def images(seed=1):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))


def squared(model, x):
    return model(x).square().mean()


def hundredfold(model, x):
    return squared(model, x) * 100


def optimized(model, loss_fn, optimizer, batch, **kwargs):
    return peakfold.optimize_step(model, loss_fn, optimizer, batch, iterations=20, time_budget=1, **kwargs)


def assert_same(model, twin, ours, theirs):
    for (name, left), right in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(left, right), name
        assert (left.grad is None) == (right.grad is None), name
        assert left.grad is None or torch.equal(left.grad, right.grad), name
    left, right = ours.state_dict()["state"], theirs.state_dict()["state"]
    assert left.keys() == right.keys()
    for index, state in right.items():
        assert left[index].keys() == state.keys()
        for key, value in state.items():
            assert value is left[index][key] is None or torch.equal(left[index][key], value), key


def eager_step(model, optimizer, x, scaler=None, clip=None, loss_fn=squared):
    loss = loss_fn(model, x)
    (loss if scaler is None else scaler.scale(loss)).backward()
    if clip is not None:
        if scaler is not None:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
    return loss.detach()


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_gradients_that_no_optimizer_clears_add_up(scaled, clip):
    """As in eager: they are clipped with the others, and not unscaled."""
    model, twin = net(), net()
    ours, theirs = (torch.optim.AdamW([*m[0].parameters(), *m[4].parameters()]) for m in (model, twin))
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0) if scaled else None for _ in range(2)]
    step = optimized(model, squared, ours, (images(),), scaler=scalers[0], clip_grad_norm=clip)
    for seed in range(4):
        assert torch.equal(step(images(seed)), eager_step(twin, theirs, images(seed), scalers[1], clip))
        assert_same(model, twin, ours, theirs)
        assert model[2].weight.grad is not None
    assert len(step._programs) == 1
    for m in (model, twin):
        m.zero_grad()
    assert torch.equal(step(images()), eager_step(twin, theirs, images(), scalers[1], clip))
    assert_same(model, twin, ours, theirs)
    assert len(step._programs) == 1


def test_gradients_that_stood_before_the_capture():
    model, twin = net(), net()
    ours, theirs = (torch.optim.SGD(m[0].parameters(), lr=0.1) for m in (model, twin))
    for m in (model, twin):
        squared(m, images(7)).backward()
    step = optimized(model, squared, ours, (images(),))
    for seed in range(3):
        assert torch.equal(step(images(seed)), eager_step(twin, theirs, images(seed)))
        assert_same(model, twin, ours, theirs)


def test_an_infinite_gradient_of_a_parameter_outside_the_optimizer_skips_nothing():
    model, twin = net(), net()
    ours, theirs = (torch.optim.AdamW(m[0].parameters()) for m in (model, twin))
    for m in (model, twin):
        m[4].bias.register_hook(lambda gradient: gradient * float("inf"))
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0) for _ in range(2)]
    step = optimized(model, squared, ours, (images(),), scaler=scalers[0], verify=False)
    for _ in range(2):
        assert torch.equal(step(images()), eager_step(twin, theirs, images(), scalers[1]))
        assert torch.equal(model[0].weight, twin[0].weight)
    assert float(scalers[0].get_scale()) == 8.0


@pytest.mark.parametrize("times", [1, 3])
def test_the_gradient_of_the_batch(times):
    """A new tensor gets its gradient; in one that has one, it adds up."""
    model, twin = net(), net()
    ours, theirs = (torch.optim.AdamW(m.parameters()) for m in (model, twin))
    step = optimized(model, squared, ours, (images().requires_grad_(),))
    for seed in range(2):
        x, y = images(seed).requires_grad_(), images(seed).requires_grad_()
        for _ in range(times):
            assert torch.equal(step(x), eager_step(twin, theirs, y))
            assert torch.equal(x.grad, y.grad)
            assert_same(model, twin, ours, theirs)
    step(images())
    assert len(step._programs) == 2  # a batch that needs no gradient is another program


def test_the_gradient_of_a_tensor_that_the_batch_holds_twice(tmp_path):
    x = images().requires_grad_()
    y = x.detach().clone().requires_grad_()
    model, twin = net(), net()
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))

    def loss(m, x, again, scale):
        return (m(x) * again.sum()).square().mean() * scale

    step = optimized(model, loss, ours, {"x": x, "again": x, "scale": 2.0})
    step.save(tmp_path / "step")
    loss(twin, y, y, 2.0).backward()
    theirs.step()
    step = peakfold.load(tmp_path / "step", model, ours)
    step({"x": x, "again": x, "scale": 2.0})
    assert torch.equal(x.grad, y.grad)
    with pytest.raises(CaptureError, match=r"batch.x is torch.float32 .* instead of .* with a gradient"):
        step({"x": x.detach(), "again": x.detach(), "scale": 2.0})


def test_gradients_alone_of_model_and_batch():
    model, twin = net(), net()
    step = optimized(model, squared, None, (images().requires_grad_(),))
    for seed in range(2):
        x, y = images(seed).requires_grad_(), images(seed).requires_grad_()
        step(x)
        squared(twin, y).backward()
        assert torch.equal(x.grad, y.grad)
        for left, right in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(left.grad, right.grad)


def test_a_batch_that_was_computed_from_others_is_refused():
    model = net()
    weight = torch.ones(6, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CaptureError, match=r"batch.0 was computed from tensors that need a gradient"):
        capture_step(model, squared, optimizer, (images() * weight,))
    step = optimized(model, squared, optimizer, (images().requires_grad_(),))
    with pytest.raises(CaptureError, match=r"batch.0 was computed from tensors that need a gradient"):
        step(images() * weight)


def test_a_tensor_from_outside_that_needs_a_gradient_is_refused():
    model, scale = net(), torch.ones((), requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        CaptureError, match="a tensor that needs a gradient is neither the model's nor of the"
    ):
        capture_step(model, lambda m, x: squared(m, x) * scale, optimizer, (images(),))
    capture_step(model, lambda m, x: squared(m, x) * scale.detach(), optimizer, (images(),))


@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.AdamW(m.parameters()),
        lambda m: torch.optim.Adam(m.parameters(), amsgrad=True),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.5),
    ],
)
@pytest.mark.parametrize("interval", [1, 2000])
def test_steps_that_a_scaler_skips_make_no_state(make, interval):
    model, twin = net(), net()
    ours, theirs = make(model), make(twin)
    scalers = [
        torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=0.02, growth_interval=interval)
        for _ in range(2)
    ]
    step = optimized(model, hundredfold, ours, (images(),), scaler=scalers[0])
    skipped = 0
    for seed in range(6):
        expected = eager_step(twin, theirs, images(seed), scalers[1], None, hundredfold)
        assert torch.equal(step(images(seed)), expected)
        assert_same(model, twin, ours, theirs)
        assert scalers[0].state_dict() == scalers[1].state_dict()
        skipped += not ours.state
    assert 1 <= skipped < 6
    copy.deepcopy(ours.state_dict())
