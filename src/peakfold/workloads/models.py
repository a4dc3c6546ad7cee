"""The seven models, random weights from a configuration: nothing is downloaded.

The configurations are those of table 2 of the MAGIS paper (Chen et al., ASPLOS 2024). ``btlm`` is MPT
with ALiBi and SwiGLU MLPs, the published shape of BTLM-3B-8K.
"""

import torch
import torch.nn.functional as F
import transformers
from monai.networks import nets
from monai.networks.nets import basic_unet
from torch import nn
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoBlock
from transformers.models.mpt.modeling_mpt import MptBlock
from transformers.models.resnet.modeling_resnet import ResNetBottleNeckLayer
from transformers.models.vit.modeling_vit import ViTLayer

from peakfold.workloads.sizes import ResNetSize, Size, TextSize, UNetSize, VisionSize

BLOCKS: dict[str, tuple[type[nn.Module], ...]] = {
    "resnet50": (ResNetBottleNeckLayer,),
    "bert": (BertLayer,),
    "bert_sdpa": (BertLayer,),
    "vit": (ViTLayer,),
    "unet": (basic_unet.TwoConv, basic_unet.Down, basic_unet.UpCat),
    "unetpp": (basic_unet.TwoConv, basic_unet.Down, basic_unet.UpCat),
    "gptneo": (GPTNeoBlock,),
    "btlm": (MptBlock,),
}


class SwiGLU(nn.Module):
    """The MLP of BTLM, ``down(silu(gate(x)) * up(x))``, plus the residual, as in the MLP of MPT."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        inner = hidden * 8 // 3 // 64 * 64
        self.gate = nn.Linear(hidden, inner)
        self.up = nn.Linear(hidden, inner)
        self.down = nn.Linear(inner, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Returns the MLP of ``x``, plus ``residual``."""
        output: torch.Tensor = self.dropout(self.down(F.silu(self.gate(x)) * self.up(x))) + residual
        return output


def make_model(name: str, size: Size, dropout: float, attention: str) -> nn.Module:
    """The model of this workload, on torch's default device."""
    match size:
        case ResNetSize():
            return _resnet(size)
        case VisionSize():
            return _vit(size, dropout, attention)
        case UNetSize():
            return _unet(name, size, dropout)
        case TextSize() if name == "gptneo":
            return _gptneo(size, dropout)
        case TextSize() if name == "btlm":
            return _btlm(size, dropout)
        case TextSize():
            return _bert(size, dropout, attention)


def _resnet(size: ResNetSize) -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=size.stem,
        hidden_sizes=list(size.widths),
        depths=list(size.depths),
        num_labels=size.classes,
    )
    model: nn.Module = transformers.ResNetForImageClassification(config)
    return model


def _vit(size: VisionSize, dropout: float, attention: str) -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.hidden,
        image_size=size.image,
        patch_size=size.patch,
        num_labels=size.classes,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation=attention,
    )
    model: nn.Module = transformers.ViTForImageClassification(config)
    return model


def _bert(size: TextSize, dropout: float, attention: str) -> nn.Module:
    config = transformers.BertConfig(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.hidden,
        vocab_size=size.vocabulary,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation=attention,
    )
    model: nn.Module = transformers.BertForMaskedLM(config)
    return model


def _gptneo(size: TextSize, dropout: float) -> nn.Module:
    config = transformers.GPTNeoConfig(
        hidden_size=size.hidden,
        num_layers=size.layers,
        attention_types=[[["global", "local"], size.layers // 2]],
        num_heads=size.heads,
        vocab_size=size.vocabulary,
        max_position_embeddings=2048,
        resid_dropout=dropout,
        embed_dropout=dropout,
        attention_dropout=dropout,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    model: nn.Module = transformers.GPTNeoForCausalLM(config)
    return model


def _btlm(size: TextSize, dropout: float) -> nn.Module:
    config = transformers.MptConfig(
        d_model=size.hidden,
        n_heads=size.heads,
        n_layers=size.layers,
        max_seq_len=size.sequence,
        vocab_size=size.vocabulary,
        use_cache=False,
    )
    model: nn.Module = transformers.MptForCausalLM(config)
    for block in model.modules():
        if isinstance(block, MptBlock):
            block.ffn = SwiGLU(size.hidden, dropout)
            # MptAttentionConfig accepts an integer only for its dropout
            block.attn.attn_dropout_p = block.resid_attn_dropout.p = dropout
    return model


def _unet(name: str, size: UNetSize, dropout: float) -> nn.Module:
    make = nets.BasicUNet if name == "unet" else nets.BasicUNetPlusPlus
    model: nn.Module = make(
        spatial_dims=2, in_channels=3, out_channels=2, features=size.features, dropout=dropout
    )
    return model
