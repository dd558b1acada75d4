"""A layer of OLMo 2. Shape letters as in `decoder.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.pretrain.models.attention import DocumentMask
from training.pretrain.models.decoder import MLP, Attention, Block
from training.pretrain.models.layers import feed_forward, unit_rms
from training.pretrain.models.shape import ModelConfig


class OlmoAttention(Attention):
    """Attention whose queries are normed over all heads together, like its keys, and whose output is normed."""

    def __init__(self, config: ModelConfig, *, windowed: bool) -> None:
        super().__init__(config, windowed=windowed)
        self.query_norm = nn.Parameter(torch.ones(config.attention_width))
        self.key_norm = nn.Parameter(torch.ones(config.kv_heads * config.head_width))

    def forward(self, x_BLD: Tensor, table: tuple[Tensor, Tensor], mask: DocumentMask) -> Tensor:
        attended = self.attended(self.product(x_BLD, self.query_key_value), table, mask)
        return _normed(attended, self.norm, self.config.norm_epsilon)

    def normed(self, query_key: Tensor) -> Tensor:
        """Return the queries and keys `[B, K, G + 1, L, E]` after QK-norm."""
        query, key = query_key.split((self.config.group, 1), dim=2)
        return torch.cat((self._normed(query, self.query_norm), self._normed(key, self.key_norm)), dim=2)

    def _normed(self, heads: Tensor, gain: Tensor) -> Tensor:
        """Norm heads `[B, K, 1 or G, L, E]` over all axes but rows and positions."""
        by_position = heads.permute(0, 3, 1, 2, 4)
        normed = _normed(by_position.flatten(2), gain, self.config.norm_epsilon)
        return normed.view(by_position.shape).permute(0, 2, 3, 1, 4)


class OlmoMLP(MLP):
    """A gated feed-forward layer whose output is normed."""

    def forward(self, x_BLD: Tensor) -> Tensor:
        given = {"gate": self.gate, "up": self.up, "down": self.down}
        done = feed_forward(x_BLD, **given, recompute=self.recompute, product=self.product)
        return _normed(done, self.norm, self.eps)


class OlmoBlock(Block):
    """A layer that adds normed outputs of attention and MLP to the residual stream."""

    attention_class = OlmoAttention
    mlp_class = OlmoMLP


def _normed(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return unit_rms(x, eps) * gain.to(x.dtype)
