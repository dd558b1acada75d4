"""The section `shards`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardsRecipe:
    """How documents become token files.

    `buckets` parts each label of the mixture in three or four sources, `web/head`, `web/middle`, `web/tail` and
    `web/unscored`: by the bucket that the rule `perplexity` wrote, or by the classifier's score and `quality_limits`
    (head from the first on, tail below the second).
    """

    max_shard_tokens: int = 100_000_000
    buckets: Literal["none", "perplexity", "quality"] = "none"
    quality_limits: tuple[float, ...] = (0.8, 0.5)

    def __post_init__(self) -> None:
        if len(self.quality_limits) != 2 or self.quality_limits[0] < self.quality_limits[1]:
            raise RecipeError(f"shards.quality_limits={list(self.quality_limits)}; two scores, the higher one first")
