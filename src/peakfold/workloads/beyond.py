"""Models beyond the seven, as targets: ``peakfold optimize t5 --size tiny``.

They are what capture and splitting are tested on; the benchmarks are of the seven.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peakfold.workloads.beyond_sizes import BEYOND_SIZES, LONG_SIZES, BeyondSize

LossFn = Callable[..., Tensor]
Batch = tuple[Tensor, ...]
Inputs = Batch | Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Beyond:
    """A model beyond the seven.

    Attributes:
        model: name of what makes it in ``beyond_models``.
        loss_fn: its loss.
        batch: makes a random batch.
        inputs: what of a batch the model itself takes.
        sizes: by name.
    """

    model: str
    loss_fn: LossFn
    batch: Callable[[BeyondSize], Batch]
    inputs: Callable[[Batch], Inputs] = lambda batch: batch[:1]
    sizes: Mapping[str, BeyondSize] = field(default_factory=lambda: BEYOND_SIZES)


def _token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def next_token(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of every token of a Hugging Face language model."""
    return _token_loss(model(input_ids=tokens).logits, labels)


def plain_next_token(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of every token of a model that returns logits."""
    return _token_loss(model(tokens), labels)


def translation(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """The loss that a Hugging Face encoder-decoder computes itself."""
    loss: Tensor = model(input_ids=tokens, labels=labels).loss
    return loss


def transcription(model: nn.Module, spectrogram: Tensor, labels: Tensor) -> Tensor:
    """The loss that Whisper computes itself."""
    loss: Tensor = model(input_features=spectrogram, labels=labels).loss
    return loss


def image_class(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """The loss that a Hugging Face image model computes itself, of images or pixels."""
    loss: Tensor = model(pixel_values=pixels, labels=labels).loss
    return loss


def plain_image_class(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of one class an image."""
    return F.cross_entropy(model(pixels), labels)


def denoising(model: nn.Module, images: Tensor, noise: Tensor, times: Tensor) -> Tensor:
    """Squared error of the noise that the model finds in noisy images."""
    share = times.float().view(-1, 1, 1, 1) / 1000
    return F.mse_loss(model((1 - share) * images + share * noise, times), noise)


def regression(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Squared error of every number."""
    return F.mse_loss(model(x), y)


def _vectors(size: BeyondSize) -> Batch:
    shape = (size.batch, size.length, size.width)
    return torch.randn(shape), torch.randn(shape)


def _tokens(size: BeyondSize) -> Batch:
    shape = (size.batch, size.length)
    return torch.randint(3, size.vocabulary, shape), torch.randint(3, size.vocabulary, shape)


def _pixels(size: BeyondSize) -> Tensor:
    return torch.randn(size.batch, 3, size.image, size.image)


def _images(size: BeyondSize) -> Batch:
    return _pixels(size), torch.randint(size.classes, (size.batch,))


def _maps(size: BeyondSize) -> Batch:
    return _pixels(size), torch.randint(size.classes, (size.batch, size.image, size.image))


def _noise(size: BeyondSize) -> Batch:
    return _pixels(size), _pixels(size), torch.randint(1000, (size.batch,))


def _speech(size: BeyondSize) -> Batch:
    return torch.randn(size.batch, 8, 2 * size.length), _tokens(size)[0]


def _named(*names: str) -> Callable[[Batch], Inputs]:
    return lambda batch: dict(zip(names, batch, strict=True))


BEYOND: dict[str, Beyond] = {
    "t5": Beyond("t5", translation, _tokens, _named("input_ids", "labels")),
    "swin": Beyond("swin", image_class, _images),
    "convnext": Beyond("convnext", image_class, _images),
    "segformer": Beyond("segformer", image_class, _maps),
    "whisper": Beyond("whisper", transcription, _speech, _named("input_features", "labels")),
    "mamba": Beyond("mamba", next_token, _tokens),
    "rwkv": Beyond("rwkv", plain_next_token, _tokens),
    "moe": Beyond("moe", plain_next_token, _tokens),
    "moe_dense": Beyond("moe_dense", plain_next_token, _tokens),
    "mixtral": Beyond("mixtral", next_token, _tokens),
    "densenet": Beyond("densenet", plain_image_class, _images),
    "lstm": Beyond("Recurrent", plain_next_token, _tokens),
    "diffusion": Beyond("Denoiser", denoising, _noise, lambda batch: (batch[0], batch[2])),
    "llama": Beyond("llama", next_token, _tokens),
    "gpt2": Beyond("gpt2", next_token, _tokens),
    "attention": Beyond("LongAttention", regression, _vectors, sizes=LONG_SIZES),
}
"""By the name of the target."""


def make(name: str, size: BeyondSize, models: ModuleType) -> tuple[nn.Module, LossFn, Batch]:
    """Return the model, its loss and a batch, on torch's default device.

    Args:
        name: one of ``BEYOND``.
        size: how large.
        models: the module ``beyond_models``.
    """
    chosen = BEYOND[name]
    model: nn.Module = getattr(models, chosen.model)(size)
    return model.train(), chosen.loss_fn, chosen.batch(size)
