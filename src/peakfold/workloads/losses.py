"""The loss of each workload, ``loss_fn(model, inputs, labels)``, and a random batch for it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peakfold.workloads.sizes import ResNetSize, Size, TextSize, UNetSize, VisionSize


def image_class(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of one class an image."""
    return F.cross_entropy(_at_least_float32(model(pixels).logits), labels)


def masked_token(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of every token."""
    return _token_loss(model(input_ids=tokens).logits, labels)


def next_token(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of every token of a causal model, whose key-value cache is off."""
    return _token_loss(model(input_ids=tokens, use_cache=False).logits, labels)


def pixel_class(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of one class a pixel."""
    return F.cross_entropy(_at_least_float32(model(pixels)), labels)


def first_pixel_class(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of one class a pixel, for a model that returns a list of outputs."""
    return F.cross_entropy(_at_least_float32(model(pixels)[0]), labels)


LOSSES: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    "resnet50": image_class,
    "bert": masked_token,
    "bert_sdpa": masked_token,
    "vit": image_class,
    "unet": pixel_class,
    "unetpp": first_pixel_class,
    "gptneo": next_token,
    "btlm": next_token,
}


def make_batch(size: Size, batch: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Random inputs and labels of ``batch`` samples, on torch's default device; images have this dtype."""
    match size:
        case TextSize():
            shape = (batch, size.sequence)
            return torch.randint(size.vocabulary, shape), torch.randint(size.vocabulary, shape)
        case UNetSize():
            return _pixels(size.image, batch, dtype), torch.randint(2, (batch, size.image, size.image))
        case ResNetSize() | VisionSize():
            return _pixels(size.image, batch, dtype), torch.randint(size.classes, (batch,))


def _pixels(side: int, batch: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(batch, 3, side, side).to(dtype)


def _token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(_at_least_float32(logits.reshape(-1, logits.shape[-1])), labels.reshape(-1))


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.float() if logits.element_size() < 4 else logits
