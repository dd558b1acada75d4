"""The recipe section `shards`: size of the token files, and the division of sources into quality buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.contract.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardsRecipe:
    """Settings for writing documents as token files.

    `buckets` divides each source of the mixture by quality: `web` becomes `web/head`, `web/middle`, `web/tail` and, for
    documents without a score, `web/unscored`. With `perplexity` a document's bucket is that of the filter rule of this
    name. With `quality` it depends on the classifier's score: at least the first of `quality_limits` is `head`, less
    than the second is `tail`, and between them is `middle`.
    """

    max_shard_tokens: int = 100_000_000
    buckets: Literal["none", "perplexity", "quality"] = "none"
    quality_limits: tuple[float, ...] = (0.8, 0.5)

    def __post_init__(self) -> None:
        if len(self.quality_limits) != 2 or self.quality_limits[0] < self.quality_limits[1]:
            raise RecipeError(f"shards.quality_limits={list(self.quality_limits)}; two scores, the higher one first")
