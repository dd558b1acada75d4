"""A layer of DeepSeek-V3. Shape letters as in `decoder.py`; N, R and V are the plain and rotated parts and the values.

A head's queries and keys are N + R wide; R of the keys are the same for all heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.pretrain.models.attention import DocumentMask
from training.pretrain.models.decoder import BaseAttention, Block
from training.pretrain.models.experts import Experts
from training.pretrain.models.families.deepseek_v3.settings import settings_of
from training.pretrain.models.layers import unit_rms
from training.pretrain.models.rotary import rotate
from training.pretrain.models.shape import ModelConfig

LATENT_EPSILON = 1e-6  # of the norms of latent states, whatever the model's


class LatentAttention(BaseAttention):
    """Attention whose keys and values, and usually queries, are made from narrow latent states (arXiv 2405.04434)."""

    def __init__(self, config: ModelConfig, *, windowed: bool) -> None:
        super().__init__(config, windowed=windowed)
        given = self.settings = settings_of(config)
        D, H = config.width, config.heads
        query_key, latent = given.plain_width + config.head_width, given.key_value_rank
        if given.query_rank is None:
            self.query = nn.Parameter(torch.empty(H * query_key, D))
        else:
            self.query_down = nn.Parameter(torch.empty(given.query_rank, D))
            self.query_norm = nn.Parameter(torch.ones(given.query_rank))
            self.query_up = nn.Parameter(torch.empty(H * query_key, given.query_rank))
        self.key_value_down = nn.Parameter(torch.empty(latent + config.head_width, D))
        self.key_value_norm = nn.Parameter(torch.ones(latent))
        self.key_value_up = nn.Parameter(torch.empty(H * (given.plain_width + given.value_width), latent))
        self.output = nn.Parameter(torch.empty(D, H * given.value_width))

    def forward(self, x_BLD: Tensor, table: tuple[Tensor, Tensor], mask: DocumentMask) -> Tensor:
        given, rotated = self.settings, self.config.head_width
        B, L, _ = x_BLD.shape
        unit = unit_rms(x_BLD, self.config.norm_epsilon)
        down = self.product(unit, self.key_value_down, self.norm)
        latent, shared_key = down.split((given.key_value_rank, rotated), dim=-1)
        up = self.product(unit_rms(latent, LATENT_EPSILON), self.key_value_up, self.key_value_norm)
        plain_query, query = self._heads(self._queries(unit)).split((given.plain_width, rotated), dim=-1)
        plain_key, value = self._heads(up).split((given.plain_width, given.value_width), dim=-1)
        # In one rotation: the queries of all heads `[B, H, L, R]` and the key `[B, 1, L, R]`.
        turned = rotate(_halves(torch.cat((query, shared_key[:, None]), dim=1)), *(part[:, 0] for part in table))
        queries = torch.cat((self._sharpened(plain_query), turned[:, :-1]), dim=-1)
        keys = torch.cat((plain_key, turned[:, -1:].expand(-1, self.config.heads, -1, -1)), dim=-1)
        mixed = self.mixed(torch.stack((queries, keys), dim=2), value[:, :, None].contiguous(), mask, table=None)
        return self.product(mixed[:, :, 0].transpose(1, 2).reshape(B, L, -1), self.output)

    def _queries(self, unit: Tensor) -> Tensor:
        if self.settings.query_rank is None:
            return self.product(unit, self.query, self.norm)
        latent = self.product(unit, self.query_down, self.norm)
        return self.product(unit_rms(latent, LATENT_EPSILON), self.query_up, self.query_norm)

    def _heads(self, x: Tensor) -> Tensor:
        """Return `[B, L, H · …]` as `[B, H, L, …]`."""
        return x.unflatten(-1, (self.config.heads, -1)).transpose(1, 2)

    def _sharpened(self, plain: Tensor) -> Tensor:
        """Multiply the plain part of queries by the factor that the rotation gives the rotated parts of both."""
        factor = self.config.rope_scaling.attention_factor
        return plain if factor == 1.0 else plain * factor**2


class GroupedExperts(Experts):
    """Experts with a sigmoid as score, chosen among the best groups of experts."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.settings = settings_of(config)

    def scored(self, logits: Tensor) -> Tensor:
        """Return the score of each expert for each token, which does not depend on the other experts."""
        return torch.sigmoid(logits)

    def ranked(self, scores: Tensor) -> Tensor:
        """Return scores with the bias, and minus infinity for experts outside the best groups of their token."""
        given, ranked = self.settings, super().ranked(scores.detach())
        if given.groups == given.active_groups:
            return ranked
        by_group = ranked.unflatten(-1, (given.groups, -1))
        best = by_group.topk(2, dim=-1).values.sum(dim=-1).topk(given.active_groups, dim=-1).indices
        outside = torch.ones(by_group.shape[:-1], dtype=torch.bool, device=ranked.device).scatter_(-1, best, False)
        return by_group.masked_fill(outside[..., None], -torch.inf).flatten(-2)

    def choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers and weights of every token's experts, each `[B, L, k]`."""
        chosen, weights = super().choose(scores)
        return chosen, weights * self.settings.weight_scale


class DeepSeekBlock(Block):
    """A layer of latent attention, and of experts in groups or an MLP."""

    attention_class = LatentAttention
    experts_class = GroupedExperts


def _halves(x: Tensor) -> Tensor:
    """Return `x` with the pairs (0, 1), (2, 3), … of its last axis, as the weights have them, as two halves."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
