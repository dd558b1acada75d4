"""Settings of low-rank adapters (LoRA), used by the recipe sections `sft` and `align`."""

from __future__ import annotations

from dataclasses import dataclass

from training.records import RecipeError, formerly


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraRecipe:
    """Settings of low-rank adapters (LoRA, arXiv 2106.09685), which are merged into the weights after training."""

    rank: int | None = formerly(0)  # None: no adapters, every weight is trained
    alpha: int = 16
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise RecipeError(f"lora.rank={self.rank} must be at least 1; null trains every weight")
