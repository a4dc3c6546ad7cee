"""The sizes: ``paper`` as in table 2 of the MAGIS paper, ``cpu`` for one core, ``tiny`` for tests."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ResNetSize:
    """A residual network on square images of ``image`` pixels a side."""

    batch: int
    image: int
    stem: int = 64
    widths: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    classes: int = 1000
    half: bool = False


@dataclass(frozen=True, slots=True)
class VisionSize:
    """A vision transformer on square images."""

    batch: int
    image: int
    hidden: int
    layers: int
    heads: int
    patch: int = 16
    classes: int = 1000
    half: bool = False


@dataclass(frozen=True, slots=True)
class TextSize:
    """A transformer on ``sequence`` tokens; ``half``: its parameters are bfloat16."""

    batch: int
    sequence: int
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    half: bool = False


@dataclass(frozen=True, slots=True)
class UNetSize:
    """A U-Net on square images of three channels, two classes a pixel."""

    batch: int
    image: int
    features: tuple[int, ...]
    half: bool = False


Size = ResNetSize | VisionSize | TextSize | UNetSize

_BERT_CPU = TextSize(batch=8, sequence=256, hidden=256, layers=6, heads=4, vocabulary=4096)
_CAUSAL_CPU = TextSize(batch=4, sequence=384, hidden=256, layers=6, heads=4, vocabulary=4096)
_TEXT_TINY = TextSize(batch=4, sequence=16, hidden=32, layers=2, heads=2, vocabulary=128)

_RESNET50 = {
    "tiny": ResNetSize(4, 64, stem=8, widths=(16, 32, 32, 64), depths=(1, 2, 1, 1), classes=10),
    "cpu": ResNetSize(16, 96),
    "paper": ResNetSize(64, 224),
}
_VIT = {
    "tiny": VisionSize(4, 32, hidden=32, layers=2, heads=2, patch=8, classes=10),
    "cpu": VisionSize(10, 224, hidden=256, layers=6, heads=4),
    "paper": VisionSize(64, 224, hidden=768, layers=12, heads=12),
}
_BERT = {
    "tiny": _TEXT_TINY,
    "cpu": _BERT_CPU,
    "paper": TextSize(batch=32, sequence=512, hidden=768, layers=12, heads=12, vocabulary=30522),
}
_GPTNEO = {
    "tiny": _TEXT_TINY,
    "cpu": _CAUSAL_CPU,
    "paper": TextSize(32, 512, hidden=2048, layers=24, heads=16, vocabulary=50257, half=True),
}
_BTLM = {
    "tiny": replace(_TEXT_TINY, hidden=48),
    "cpu": _CAUSAL_CPU,
    "paper": TextSize(32, 512, hidden=2560, layers=32, heads=32, vocabulary=50257, half=True),
}
_UNET = {
    "tiny": UNetSize(2, 32, (4, 4, 8, 8, 16, 4)),
    "cpu": UNetSize(12, 128, (16, 16, 32, 64, 128, 16)),
    "paper": UNetSize(32, 256, (64, 64, 128, 256, 512, 64)),
}
_UNETPP = {
    "tiny": UNetSize(2, 32, (4, 4, 8, 8, 16, 4)),
    "cpu": UNetSize(8, 128, (8, 16, 32, 64, 128, 8)),
    "paper": UNetSize(16, 256, (32, 64, 128, 256, 512, 32)),
}

SIZES: Mapping[str, Mapping[str, Size]] = {
    "resnet50": _RESNET50,
    "bert": _BERT,
    "bert_sdpa": _BERT,
    "vit": _VIT,
    "unet": _UNET,
    "unetpp": _UNETPP,
    "gptneo": _GPTNEO,
    "btlm": _BTLM,
}
