"""The recipe section `reward`: the training of the reward model and its gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from training.posttrain.adapter_settings import can_be_spread
from training.pretrain.optim.settings import Schedule, check_schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardRecipe:
    """Settings of the reward model, which is trained on the preference pairs with the Bradley-Terry loss.

    `trl` sets other fields of RewardConfig. `peft` has the fields of LoraConfig for adapters; empty: every weight is
    trained.
    """

    epochs: float = 1.0
    learning_rate: float = 2e-4
    batch_size: int = 32
    max_length: int = 256
    schedule: Schedule = "cosine"  # as in pretraining
    warmup_fraction: float = 0.05
    decay_fraction: float = 0.2
    final_learning_rate_fraction: float = 0.1
    precision: Literal["bf16", "fp32"] = "bf16"
    min_pair_accuracy: float = 0.6  # lowest accuracy on held-out pairs that passes the gate, in [0, 1]
    peft: dict[str, Any] = field(default_factory=dict)
    trl: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        check_schedule(self, "reward")

    @property
    def can_be_spread(self) -> bool:
        """Whether the profile's `shard` divides the weights; otherwise each process has the whole model."""
        return can_be_spread(self.peft)
