"""Small random training steps: layers of tokens or of images, with skips, dropout, normalizations."""

import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from peakfold.pipeline.task import Task

DROPOUT = 0.2
CLASSES = 6
MOST_LAYERS = 4

Made = Callable[[random.Random, int], nn.Module]


class Skip(nn.Module):
    """What a module makes, added to what it reads or joined to it."""

    def __init__(self, inner: nn.Module, joined: nn.Module | None) -> None:
        super().__init__()
        self.inner, self.joined = inner, joined

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add, or join channels and bring them back to as many."""
        made: torch.Tensor = self.inner(x)
        return x + made if self.joined is None else self.joined(torch.cat([x, made], dim=-1))


class Attention(nn.Module):
    """Scores, softmax and product, written out; causal or not."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.packed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend over the second dimension."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.packed(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        mixed = functional.dropout(scores.softmax(-1), DROPOUT) @ v
        made: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return made


class Images(nn.Module):
    """Layers of images, rows pooled at the end."""

    def __init__(self, layers: nn.Module, width: int) -> None:
        super().__init__()
        self.layers, self.head = layers, nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classes of each image."""
        made: torch.Tensor = self.head(self.layers(x).mean((2, 3)))
        return made


TOKENS: tuple[Made, ...] = (
    lambda rng, width: nn.Linear(width, width, bias=rng.random() < 0.7),
    lambda rng, width: nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)),
    lambda rng, width: nn.LayerNorm(width),
    lambda rng, width: rng.choice((nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU, nn.Sigmoid))(),
    lambda rng, width: nn.Dropout(DROPOUT),
    lambda rng, width: Attention(width, rng.choice((1, 2)), rng.random() < 0.5),
    lambda rng, width: nn.Softmax(dim=-1),
)
IMAGES: tuple[Made, ...] = (
    lambda rng, width: nn.Conv2d(width, width, 3, padding=1, groups=rng.choice((1, 2))),
    lambda rng, width: nn.Conv2d(width, width, 1, bias=False),
    lambda rng, width: nn.BatchNorm2d(width),
    lambda rng, width: nn.InstanceNorm2d(width, affine=True),
    lambda rng, width: nn.GroupNorm(2, width),
    lambda rng, width: rng.choice((nn.ReLU, nn.GELU, nn.SiLU, nn.LeakyReLU))(),
    lambda rng, width: nn.Dropout(DROPOUT),
    lambda rng, width: nn.MaxPool2d(2),
    lambda rng, width: nn.AvgPool2d(3, stride=1, padding=1),
    lambda rng, width: nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, 2, 1)),
)


def small_task(optimizer: str, rng: random.Random) -> Task:
    """Return a random training step in float64.

    Args:
        optimizer: ``"sgd"``, ``"momentum"`` or ``"adamw"``.
        rng: decides all of it.
    """
    torch.manual_seed(rng.randrange(1 << 30))
    model, batch, loss_fn = (_tokens if rng.random() < 0.5 else _images)(rng)
    model = model.double()
    weights = list(model.parameters())
    made: torch.optim.Optimizer = (
        torch.optim.AdamW(weights, lr=0.01)
        if optimizer == "adamw"
        else torch.optim.SGD(weights, lr=0.1, momentum=0.9 if optimizer == "momentum" else 0.0)
    )
    return Task(model, loss_fn, made, batch)


def _tokens(rng: random.Random) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    samples, length, width = rng.choice((2, 3, 4, 6)), rng.choice((3, 4, 6)), rng.choice((4, 6))
    layers = [_layer(rng, width, TOKENS) for _ in range(rng.randint(1, MOST_LAYERS))]
    model = nn.Sequential(nn.Embedding(11, width), *layers, nn.Linear(width, CLASSES))
    batch = (torch.randint(11, (samples, length)), torch.randint(CLASSES, (samples, length)))
    if rng.random() < 0.5:
        return model, batch, _cross_entropy
    return model, (batch[0], torch.randn(samples, length, CLASSES, dtype=torch.float64)), _square


def _images(rng: random.Random) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    samples, size, width = rng.choice((1, 2, 3, 4)), rng.choice((4, 8)), 4
    layers = [_layer(rng, width, IMAGES) for _ in range(rng.randint(1, MOST_LAYERS))]
    pools = sum(isinstance(one, nn.MaxPool2d) for one in layers)
    size <<= max(pools - 1, 0)
    model = Images(nn.Sequential(nn.Conv2d(2, width, 3, padding=1), *layers), width)
    pixels = torch.randn(samples, 2, size, size, dtype=torch.float64)
    return model, (pixels, torch.randint(CLASSES, (samples,))), _cross_entropy


def _layer(rng: random.Random, width: int, kinds: tuple[Made, ...]) -> nn.Module:
    made = rng.choice(kinds)(rng, width)
    if kinds is TOKENS and rng.random() < 0.4:
        return Skip(made, nn.Linear(2 * width, width) if rng.random() < 0.3 else None)
    return Skip(made, None) if rng.random() < 0.4 and not isinstance(made, nn.MaxPool2d) else made


def _cross_entropy(model: nn.Module, given: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(given).flatten(0, -2), labels.flatten())


def _square(model: nn.Module, given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(model(given), wanted)
