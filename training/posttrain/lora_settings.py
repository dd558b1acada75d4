"""Low-rank adapters, as the sections `sft` and `align` ask for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraRecipe:
    """Low-rank adapters (arXiv 2106.09685), merged into the weights after training. rank 0 trains every weight."""

    rank: int = 0
    alpha: int = 16
    dropout: float = 0.0
