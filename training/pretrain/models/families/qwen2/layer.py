"""A layer of Qwen2. Shape letters as in `decoder.py`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from training.pretrain.models.attention import DocumentMask
from training.pretrain.models.decoder import Attention, Block
from training.pretrain.models.layers import unit_rms
from training.pretrain.models.shape import ModelConfig


class QwenAttention(Attention):
    """Grouped-query attention with a bias of queries, keys and values; its rows lie as those of their product."""

    def __init__(self, config: ModelConfig, *, windowed: bool) -> None:
        super().__init__(config, windowed=windowed)
        self.query_key_value_bias = nn.Parameter(torch.zeros(len(self.query_key_value)))

    def forward(self, x_BLD: Tensor, table: tuple[Tensor, Tensor], mask: DocumentMask) -> Tensor:
        fused = self.product(unit_rms(x_BLD, self.config.norm_epsilon), self.query_key_value, self.norm)
        return self.attended(fused + self.query_key_value_bias.to(fused.dtype), table, mask)


class QwenBlock(Block):
    """A layer of Llama with such attention."""

    attention_class = QwenAttention


def bias_views(block: Block) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of each bias inside a layer of transformers' class, with a view of it."""
    assert isinstance(block.attention, QwenAttention)
    config = block.attention.config
    heads = block.attention.query_key_value_bias.view(config.kv_heads, config.group + 2, config.head_width)
    yield "self_attn.q_proj.bias", heads[:, : config.group]
    yield "self_attn.k_proj.bias", heads[:, config.group]
    yield "self_attn.v_proj.bias", heads[:, config.group + 1]
