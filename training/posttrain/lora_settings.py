"""Settings of low-rank adapters (LoRA), used by the recipe sections `sft` and `align`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraRecipe:
    """Low-rank adapters (arXiv 2106.09685), merged into the weights after training. rank 0 trains every weight."""

    rank: int = 0
    alpha: int = 16
    dropout: float = 0.0
