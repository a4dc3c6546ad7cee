"""``torch.utils.checkpoint`` in users' models: eager runs the function twice a step, and so do effects."""

from functools import partial

import pytest
import torch
from tests.torch.capture_support import equal_steps
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import peakfold
from peakfold.bridge.capture import capture_step
from peakfold.errors import CaptureError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))


class Net(nn.Module):
    """A checkpointed block with batch norms and dropout, and one checkpoint inside the other."""

    def __init__(self, momentum=0.1, nested=False, **kwargs):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4, momentum=momentum)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.norm_again = nn.BatchNorm2d(4, momentum=momentum)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(4, 2)
        self.nested, self.kwargs = nested, kwargs

    def inner(self, x):
        return self.drop(torch.relu(self.norm_again(self.second(x))))

    def block(self, x):
        x = torch.relu(self.norm(x))
        return checkpoint(self.inner, x, **self.kwargs) if self.nested else self.inner(x)

    def forward(self, x):
        return self.head(checkpoint(self.block, self.first(x), **self.kwargs).mean((2, 3)))


def images():
    return (torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1)),)


def squared(model, x):
    return model(x).square().mean()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_statistics_are_updated_as_often_as_eager_does(reentrant, momentum, preserve, nested):
    model = Net(momentum, nested, use_reentrant=reentrant, preserve_rng_state=preserve)
    captured = equal_steps(capture_step, model, squared, adamw, images())
    convolutions = [node for node in captured.graph.nodes if node.op.name == "aten.convolution.default"]
    assert len(convolutions) == 2


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_through_the_whole_pipeline(reentrant, momentum):
    """Verified by `optimize_step` itself, then trained beside eager."""
    mine, twin = (Net(momentum, use_reentrant=reentrant) for _ in range(2))
    ours, theirs = adamw(mine), adamw(twin)
    step = peakfold.optimize_step(mine, squared, ours, images(), "90%", iterations=50, time_budget=2)
    for seed in range(4):
        torch.manual_seed(seed)
        loss = step(*images())
        torch.manual_seed(seed)
        expected = squared(twin, *images())
        expected.backward()
        theirs.step()
        theirs.zero_grad()
        assert torch.equal(loss, expected)
    for (name, left), right in zip(mine.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(left, right), name


def test_cumulative_averages_without_a_checkpoint():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.Flatten(), nn.LazyBatchNorm1d(momentum=None)
    )
    model(*images())
    equal_steps(capture_step, model, squared, adamw, images(), steps=5)


def test_batch_norm_that_is_last_in_a_checkpoint_and_one_that_is_frozen():
    """A function that runs again stops where all that backward needs is there."""
    tail = nn.BatchNorm2d(4)
    tail.requires_grad_(False)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), tail)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.scale = body, nn.Parameter(torch.ones(1))

        def forward(self, x):
            return checkpoint(self.body, x * self.scale, use_reentrant=False)

    equal_steps(capture_step, Both(), squared, adamw, images())


def test_a_buffer_that_decides_what_is_computed_again():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("scale", torch.ones(()))

        def block(self, x):
            self.scale.mul_(1.5)
            return torch.tanh(self.linear(x) * self.scale)

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    equal_steps(capture_step, Counting(), squared, adamw, (torch.ones(2, 3),))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_sequential(reentrant):
    layers = [nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh()]

    def loss(model, x):
        return checkpoint_sequential(model, 3, x * model[0].bias, use_reentrant=reentrant).square().mean()

    equal_steps(capture_step, nn.Sequential(*layers), loss, adamw, (torch.randn(5, 3),))


def _keep_products(context, operator, *args, **kwargs):
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if operator in products else CheckpointPolicy.PREFER_RECOMPUTE


def test_selective_checkpoints():
    contexts = partial(create_selective_checkpoint_contexts, _keep_products)
    block = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.4), nn.GELU(), nn.Linear(3, 3))

    def loss(model, x):
        return checkpoint(model, x, use_reentrant=False, context_fn=contexts).square().mean()

    equal_steps(capture_step, block, loss, adamw, (torch.randn(5, 3),))


class Masked(nn.Module):
    """Attention with dropout that makes its own causal mask, by the fused operator or written out."""

    def __init__(self, fused):
        super().__init__()
        self.qkv, self.fused = nn.Linear(4, 12), fused

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 2).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)
        else:
            mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
            scores = (q @ k.transpose(-1, -2)).masked_fill(mask, float("-inf"))
            mixed = torch.dropout(scores.softmax(-1), 0.3, True) @ v
        return x + mixed.transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_blocks_that_each_make_equal_values_of_their_own(reentrant, fused):
    def loss(model, x):
        x = model[0](x)
        for block in model[1:]:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return x.square().mean()

    batch = (torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1)),)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), *(Masked(fused) for _ in range(3)))
    equal_steps(capture_step, model, loss, adamw, batch)


def test_what_is_drawn_again_for_other_values_is_refused():
    class Shifting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("scale", torch.ones(()))

        def block(self, x):
            self.scale.mul_(1.5)
            return torch.dropout(self.linear(x * self.scale), 0.5, True).tanh()

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    model = Shifting()
    with pytest.raises(CaptureError, match="draws its random numbers again for other values"):
        capture_step(model, squared, adamw(model), (torch.ones(2, 3),))


def test_statistics_alone_in_a_reentrant_checkpoint_are_refused():
    class Noting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("seen", torch.zeros(3))

        def block(self, x):
            self.seen.add_(1)
            return x + 1

        def forward(self, x):
            return checkpoint(self.block, x + self.weight, use_reentrant=True)

    model = Noting()
    with pytest.raises(CaptureError, match="keeps nothing for the backward pass"):
        capture_step(model, squared, adamw(model), (torch.ones(2, 3),))
