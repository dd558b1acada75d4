"""The settings of the DeepSeek-V3 family, which its declaration and its layers read. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.records import RecipeError
from training.pretrain.models.shape import ModelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentSettings:
    """The family's settings, `model.parts.deepseek_v3`. `model.head_width` is the rotated part of a query or key.

    Queries and keys of a head are `plain_width + model.head_width` wide. The rotated part of the keys is the same for
    all heads. An expert's bias is used only for the choice; the best `active_groups` of `groups` equal groups of
    experts, by the sum of their two best, are those from which a token's experts are chosen.
    """

    query_rank: int | None = None  # width of the latent state of queries; None: none
    key_value_rank: int  # width of the latent state from which keys and values are made
    plain_width: int  # of a query or key, without the rotated part
    value_width: int
    groups: int = 1
    active_groups: int = 1
    weight_scale: float = 1.0  # factor of the routed experts' weights

    def __post_init__(self) -> None:
        numbers = (self.query_rank or 1, self.key_value_rank, self.plain_width, self.value_width, self.groups)
        if min(numbers) < 1 or self.query_rank == 0 or not 1 <= self.active_groups <= self.groups:
            raise RecipeError(
                f"model.parts.deepseek_v3: query_rank={self.query_rank} (null for none), key_value_rank="
                f"{self.key_value_rank}, plain_width={self.plain_width}, value_width={self.value_width}, groups="
                f"{self.groups}, active_groups={self.active_groups}; at least 1, and no more active groups than groups"
            )


def settings_of(config: ModelConfig) -> LatentSettings:
    """Return the family's settings of a shape."""
    return config.settings_of(LatentSettings)
