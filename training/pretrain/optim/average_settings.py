"""The settings `pretrain.average`: which mean of the weights the base model is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.contract.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class AverageRecipe:
    """Whether the base model is a mean of the weights over training steps, instead of the last weights.

    `ema` is a moving average over every step; `uniform` is the plain mean over the end of the run, as if checkpoints
    had been averaged (arXiv 2306.03241). Training itself always continues from the last weights.
    """

    kind: Literal["none", "ema", "uniform"] = "none"
    decay: float = 0.999  # ema: share of the mean that a step keeps
    fraction: float = 0.1  # uniform: share of the steps, at the end
    every: int = 1  # uniform: steps between two that enter the mean

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1 or not 0 < self.fraction <= 1 or self.every < 1:
            raise RecipeError(
                f"pretrain.average: decay={self.decay} (from 0, below 1), fraction={self.fraction} (above 0, to 1),"
                f" every={self.every} (at least 1)"
            )
