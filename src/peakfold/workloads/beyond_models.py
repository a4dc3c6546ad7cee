"""The models beyond the seven, from transformers and MONAI or written out: random weights, no downloads."""

import torch
import torch.nn.functional as F
import transformers
from monai.networks import nets
from torch import Tensor, nn

from peakfold.workloads.beyond_sizes import BeyondSize


def t5(size: BeyondSize) -> nn.Module:
    """T5: an encoder and a decoder with relative positions."""
    config = transformers.T5Config(
        vocab_size=size.vocabulary,
        d_model=size.width,
        d_kv=size.width // 2,
        d_ff=2 * size.width,
        num_layers=size.depth,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    model: nn.Module = transformers.T5ForConditionalGeneration(config)
    return model


def swin(size: BeyondSize) -> nn.Module:
    """Swin: attention in windows, shifted in every other block."""
    config = transformers.SwinConfig(
        image_size=size.image,
        patch_size=2,
        embed_dim=size.width,
        depths=[2, size.depth],
        num_heads=[2, 4],
        window_size=4,
        drop_path_rate=0.0,
        num_labels=size.classes,
    )
    model: nn.Module = transformers.SwinForImageClassification(config)
    return model


def convnext(size: BeyondSize) -> nn.Module:
    """ConvNeXt: depthwise convolutions and layer norms over channels."""
    config = transformers.ConvNextConfig(
        depths=[1, size.depth, 1, 1],
        hidden_sizes=[size.width // 2, size.width, size.width, 2 * size.width],
        patch_size=2,
        num_labels=size.classes,
    )
    model: nn.Module = transformers.ConvNextForImageClassification(config)
    return model


def segformer(size: BeyondSize) -> nn.Module:
    """SegFormer: attention on reduced keys, a decoder of all stages, one class a pixel."""
    config = transformers.SegformerConfig(
        depths=[1, size.depth, 1, 1],
        hidden_sizes=[size.width // 2, size.width, size.width, 2 * size.width],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=size.width,
        drop_path_rate=0.0,
        classifier_dropout_prob=0.0,
        num_labels=size.classes,
    )
    model: nn.Module = transformers.SegformerForSemanticSegmentation(config)
    return model


def whisper(size: BeyondSize) -> nn.Module:
    """Whisper: convolutions on a spectrogram, an encoder and a decoder."""
    config = transformers.WhisperConfig(
        vocab_size=size.vocabulary,
        num_mel_bins=MELS,
        d_model=size.width,
        encoder_layers=size.depth,
        decoder_layers=size.depth,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=2 * size.width,
        decoder_ffn_dim=2 * size.width,
        max_source_positions=size.length,
        max_target_positions=size.length,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    )
    model: nn.Module = transformers.WhisperForConditionalGeneration(config)
    return model


MELS = 8
"""Bands of a spectrogram."""


def mamba(size: BeyondSize) -> nn.Module:
    """Mamba: a selective state space, scanned along the sequence."""
    config = transformers.MambaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        state_size=4,
        num_hidden_layers=size.depth,
        use_cache=False,
        use_mambapy=False,
    )
    model: nn.Module = transformers.MambaForCausalLM(config)
    return model


def llama(size: BeyondSize) -> nn.Module:
    """LLaMA: rotary positions, grouped queries, a gated MLP."""
    config = transformers.LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=2 * size.width,
        num_hidden_layers=size.depth,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=size.length,
        use_cache=False,
    )
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def gpt2(size: BeyondSize) -> nn.Module:
    """GPT-2, with tied embeddings."""
    config = transformers.GPT2Config(
        vocab_size=size.vocabulary,
        n_positions=size.length,
        n_embd=size.width,
        n_layer=size.depth,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def mixtral(size: BeyondSize) -> nn.Module:
    """Mixtral: each token goes to two experts that its data chooses, as most write it."""
    config = transformers.MixtralConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=2 * size.width,
        num_hidden_layers=size.depth,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=EXPERTS,
        max_position_embeddings=size.length,
        use_cache=False,
    )
    model: nn.Module = transformers.MixtralForCausalLM(config)
    return model


def densenet(size: BeyondSize) -> nn.Module:
    """DenseNet: each layer reads all before it."""
    model: nn.Module = nets.DenseNet(
        spatial_dims=2,
        in_channels=3,
        out_channels=size.classes,
        init_features=size.width // 2,
        growth_rate=size.width // 4,
        block_config=(2, 2 * size.depth),
    )
    return model


class ResidualBlock(nn.Module):
    """Two convolutions, told the time; the skip is a convolution of one pixel where channels differ."""

    def __init__(self, given: int, made: int, times: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(4, given), nn.SiLU(), nn.Conv2d(given, made, 3, padding=1))
        self.time = nn.Linear(times, made)
        self.second = nn.Sequential(nn.GroupNorm(4, made), nn.SiLU(), nn.Conv2d(made, made, 3, padding=1))
        self.skip = nn.Identity() if given == made else nn.Conv2d(given, made, 1)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        """Return the block of images at times."""
        y = self.first(x) + self.time(times)[:, :, None, None]
        result: Tensor = self.second(y) + self.skip(x)
        return result


class PixelAttention(nn.Module):
    """Attention of every pixel to every other."""

    def __init__(self, channels: int, heads: int = 2) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(4, channels), heads
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return images with what each pixel took from the others."""
        q, k, v = (
            self.qkv(self.norm(x)).flatten(2).unflatten(1, (3, self.heads, -1)).transpose(-1, -2).unbind(1)
        )
        mixed = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v
        result: Tensor = x + self.out(mixed.transpose(-1, -2).reshape(x.shape))
        return result


class Denoiser(nn.Module):
    """A diffusion U-Net with attention at its lowest level, told the time of each image."""

    def __init__(self, size: BeyondSize) -> None:
        super().__init__()
        low, high = size.width // 2, size.width
        self.times = size.width
        self.time = nn.Sequential(nn.Linear(high, high), nn.SiLU(), nn.Linear(high, high))
        self.enter = nn.Conv2d(3, low, 3, padding=1)
        self.down = ResidualBlock(low, low, high)
        self.shrink = nn.Conv2d(low, high, 3, stride=2, padding=1)
        self.middle = nn.ModuleList(ResidualBlock(high, high, high) for _ in range(size.depth))
        self.attention = nn.ModuleList(PixelAttention(high) for _ in range(size.depth))
        self.up = ResidualBlock(high + low, low, high)
        self.leave = nn.Conv2d(low, 3, 3, padding=1)

    def forward(self, images: Tensor, times: Tensor) -> Tensor:
        """Return the noise in images."""
        rates = torch.exp(-torch.arange(self.times // 2, device=times.device) * (9.0 / self.times))
        angles = times[:, None].float() * rates
        told = self.time(torch.cat((angles.sin(), angles.cos()), -1).to(images.dtype))
        kept = self.down(self.enter(images), told)
        x = self.shrink(kept)
        for block, attention in zip(self.middle, self.attention, strict=True):
            x = attention(block(x, told))
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        noise: Tensor = self.leave(self.up(torch.cat((x, kept), 1), told))
        return noise


class Recurrent(nn.Module):
    """A language model of LSTM layers."""

    def __init__(self, size: BeyondSize) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.LSTM(size.width, size.width, size.depth, batch_first=True)
        self.head = nn.Linear(size.width, size.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at each place."""
        logits: Tensor = self.head(self.layers(self.embedding(tokens))[0])
        return logits


class LongAttention(nn.Module):
    """Attention written out over a long sequence: the scores of all pairs of tokens are one tensor."""

    def __init__(self, size: BeyondSize, heads: int = 4) -> None:
        super().__init__()
        width = size.width
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(size.depth))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(size.depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(size.depth))

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens after all layers."""
        for norm, qkv, out in zip(self.norms, self.qkv, self.out, strict=True):
            q, k, v = qkv(norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            x = x + out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x


class TimeMix(nn.Module):
    """A linear recurrence with a decay for each channel, as in RWKV: one step after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.key, self.value, self.gate, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.decay, self.bonus = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the mix of each place with all before it, gated."""
        y = self.norm(x)
        key, value = self.key(y).exp(), self.value(y)
        total, weight = torch.zeros_like(value[:, 0]), torch.zeros_like(value[:, 0])
        mixed = []
        for place in range(x.shape[1]):
            k, v = key[:, place], value[:, place]
            now = k * self.bonus.exp()
            mixed.append((total + now * v) / (weight + now))
            total, weight = total * self.decay + k * v, weight * self.decay + k
        result: Tensor = self.out(torch.stack(mixed, 1) * self.gate(y).sigmoid())
        return result


class Experts(nn.Module):
    """A mixture of experts of fixed capacity: the shapes do not depend on the data [GShard].

    Each expert takes the tokens that want it most, as many as its capacity; what nobody takes passes by.
    """

    def __init__(self, width: int, experts: int, capacity: float = 1.5) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * (2 * width) ** -0.5)
        self.capacity = capacity

    def forward(self, x: Tensor) -> Tensor:
        """Return the experts' outputs, weighted by the router, at each token."""
        tokens = x.reshape(-1, x.shape[-1])
        weights = self.router(tokens).softmax(-1)
        places = int(self.capacity * tokens.shape[0] / self.up.shape[0])
        weight, chosen = weights.t().topk(places, dim=-1)
        taken = tokens[chosen]
        made = torch.bmm(F.gelu(torch.bmm(taken, self.up)), self.down) * weight.unsqueeze(-1)
        flat = made.reshape(-1, made.shape[-1])
        joined: Tensor = torch.zeros_like(tokens).index_add(0, chosen.reshape(-1), flat)
        return joined.view_as(x)


class DenseExperts(nn.Module):
    """A mixture in which every expert sees every token, and the router weighs."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum of the experts."""
        made = torch.stack([expert(x) for expert in self.experts], -1)
        weighed: Tensor = made * self.router(x).softmax(-1).unsqueeze(-2)
        return weighed.sum(-1)


class Residual(nn.Module):
    """Embeddings, residual blocks and a head that says the next token."""

    def __init__(self, size: BeyondSize, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at each place."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


EXPERTS = 4
"""Experts of a mixture."""


def rwkv(size: BeyondSize) -> nn.Module:
    """A linear recurrence along the sequence."""
    return Residual(size, [TimeMix(size.width) for _ in range(size.depth)])


def moe(size: BeyondSize) -> nn.Module:
    """A mixture of experts of fixed capacity."""
    return Residual(size, [Experts(size.width, EXPERTS) for _ in range(size.depth)])


def moe_dense(size: BeyondSize) -> nn.Module:
    """A mixture of experts that all run."""
    return Residual(size, [DenseExperts(size.width, EXPERTS) for _ in range(size.depth)])
