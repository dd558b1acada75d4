"""The recipe section `align`: the preference method and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, assert_never

from training.posttrain.adapter_settings import peft_of_lora
from training.posttrain.align.losses import check_losses
from training.posttrain.align.method import method_of, sampling_methods
from training.records import RecipeError, Uri, formerly


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignRecipe:
    """Settings of alignment. `method` is the name of a module in training/posttrain/methods.

    Methods train on the preference pairs, on their answers and on single answers, or on sampled answers with the
    learned and the verifiable reward.
    """

    method: str = "dpo"
    learning_rate: float = 5e-5
    beta: float = 0.1
    epochs: float = 1.0
    batch_size: int = 32
    max_length: int = 256
    prompts: Uri | None = formerly("")  # prompts for RL; None: the preference prompts
    max_steps: int | None = formerly(0)  # RL: optimizer steps; None: as many as `epochs` needs
    num_generations: int = 8
    max_new_tokens: int = 32
    verifiable_reward_weight: float = 0.0  # weight in [0, 1] of the reward for a right answer
    precision: Literal["bf16", "fp32"] = "bf16"
    peft: dict[str, Any] = field(default_factory=dict)
    trl: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    RENAMED: ClassVar[Mapping[str, Any]] = {"lora": peft_of_lora}

    def __post_init__(self) -> None:
        method = method_of(self.method)
        match method.learns_from:
            case "pairs" | "answers":
                self._check_unsampled()
            case "samples":
                self._check_samples()
            case _:
                assert_never(method.learns_from)
        method.check_trl(self.trl)
        if method.config == "DPOConfig":
            check_losses(self.trl)
        if not 0 <= self.verifiable_reward_weight <= 1:
            raise RecipeError(f"align.verifiable_reward_weight={self.verifiable_reward_weight} must be between 0 and 1")

    def _check_unsampled(self) -> None:
        for name, unset in (("prompts", None), ("max_steps", None), ("verifiable_reward_weight", 0.0)):
            if getattr(self, name) != unset:
                raise RecipeError(
                    f"align.{name}={getattr(self, name)!r} has no effect with method {self.method};"
                    f" remove it, or use {' or '.join(sampling_methods())}"
                )
        if not self.beta > 0:
            raise RecipeError(f"align.beta={self.beta}; method {self.method} needs one above 0")

    def _check_samples(self) -> None:
        if self.batch_size % self.num_generations:
            raise RecipeError(
                f"align.batch_size={self.batch_size} answers a step,"
                f" not a multiple of num_generations={self.num_generations}"
            )
