"""The section `reward`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardRecipe:
    """A reward model trained on the preferences (Bradley-Terry)."""

    epochs: float = 1.0
    learning_rate: float = 2e-4
    batch_size: int = 32
    max_length: int = 256
    precision: Literal["bf16", "fp32"] = "bf16"
    min_pair_accuracy: float = 0.6  # gate on held-out pairs
    seed: int = 0
