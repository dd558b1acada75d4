"""The recipe section `align`: the preference method and its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, assert_never

from training.contract.parts.outside import OutsidePart, PartsOf
from training.contract.records import RecipeError, Uri, check_above_zero
from training.posttrain.adapter_settings import can_be_spread
from training.posttrain.align.losses import check_losses
from training.posttrain.align.method import KIND, Method, method_names, method_of, outside_method, sampling_methods
from training.posttrain.align.watch_settings import AlignWatchRecipe
from training.posttrain.rewards import REWARDS
from training.posttrain.scoring import KIND as REWARD_KIND
from training.posttrain.scoring import LEARNED, MODELLED, RIGHT_ANSWER, Reward, outside_reward
from training.posttrain.source_settings import PromptColumns
from training.pretrain.optim.settings import Schedule, check_schedule
from training.pretrain.watch.steps_settings import KeptEpochsRecipe

KNOWN_REWARDS = (*REWARDS, *MODELLED)
# Fields of TRL with which transformers draws the answers by itself, and those that need the whole model beside them.
GENERATES_OTHERWISE = {"use_transformers_continuous_batching", "generation_kwargs", "cache_implementation"}
NEED_WHOLE = GENERATES_OTHERWISE | {"sync_ref_model", "use_adaptive_entropy", "cast_lm_head_to_fp32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignRecipe:
    """Settings of alignment. `method` is a module in training/posttrain/methods, or a part from outside.

    Methods train on the preference pairs, on their answers and on single answers, or on sampled answers with the
    learned and the verifiable reward.
    """

    method: str = "dpo"
    learning_rate: float = 5e-5
    beta: float = 0.1
    epochs: float = 1.0
    batch_size: int = 32
    max_length: int = 256
    prompts: Uri | None = None  # prompts for RL; None: the preference prompts
    prompt_columns: PromptColumns = field(default_factory=PromptColumns)  # of the file of prompts
    max_steps: int | None = None  # RL: optimizer steps; None: as many as `epochs` needs
    num_generations: int = 8
    max_new_tokens: int = 32
    schedule: Schedule = "cosine"  # as in pretraining
    warmup_fraction: float = 0.05
    decay_fraction: float = 0.2
    final_learning_rate_fraction: float = 0.1
    verifiable_reward_weight: float = 0.0  # weight in [0, 1] of the reward for a right answer
    precision: Literal["bf16", "fp32"] = "bf16"
    peft: dict[str, Any] = field(default_factory=dict)
    trl: dict[str, Any] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)  # RL: weights by name; empty: by verifiable_reward_weight
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)  # of method and rewards: `from` and settings
    watch: AlignWatchRecipe = field(default_factory=AlignWatchRecipe)
    keep: KeptEpochsRecipe = field(default_factory=KeptEpochsRecipe)
    seed: int = 0

    def __post_init__(self) -> None:
        check_above_zero(self, "align", "max_steps")
        check_schedule(self, "align")
        method = self.declared
        self._check_parts()
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
        if self.kept and self.method not in method_names():
            raise RecipeError(f"align.keep: method {self.method} is from outside and ends by itself; keep no step")
        if self.kept and self.watch.stops:
            raise RecipeError(
                "align.keep: not with align.watch.proxy_up_truth_down: stop, because nobody knows which steps will be"
                " reached"
            )

    @property
    def kept(self) -> tuple[str, ...]:
        """The steps or epochs after which the model is kept, such as `epoch-1`, in training order."""
        return self.keep.kept("align.keep", epochs=self.epochs, max_steps=self.max_steps)

    @property
    def without_prompts(self) -> AlignRecipe:
        """The settings of the training, without those of an artifact of prompts, what is watched and what is kept."""
        plain = {"watch": AlignWatchRecipe(), "keep": KeptEpochsRecipe()}
        return replace(self, prompts=None, prompt_columns=PromptColumns(), **plain)

    @property
    def can_be_spread(self) -> bool:
        """Whether the profile's `shard` divides the weights; otherwise each process has the whole model."""
        is_whole = self.declared.learns_from == "samples" and NEED_WHOLE & self.trl.keys()
        return can_be_spread(self.peft) and self.method in method_names() and not is_whole

    @property
    def _parts(self) -> PartsOf:
        return PartsOf("align", self.parts)

    @property
    def declared(self) -> Method:
        """The method's declaration. Raise RecipeError if it is neither Pedigree's nor one from outside."""
        return method_of(self.method) if self.method in method_names() else outside_method(self.method, self._parts)

    @property
    def own_settings(self) -> Any:
        """The settings of a method from outside as its record."""
        return self._parts.settings(self.method, self.declared.settings)

    @property
    def reward_parts(self) -> dict[str, Reward]:
        """The rewards that are functions, by name: all but the learned one and that of a right answer."""
        return {
            name: REWARDS.get(name) or outside_reward(name, self._parts, KNOWN_REWARDS)
            for name in self.rewards
            if name not in MODELLED
        }

    def reward_settings(self, name: str) -> Any:
        """The settings of a reward that is a function as its record."""
        return self._parts.settings(name, self.reward_parts[name].settings)

    @property
    def reward_weights(self) -> dict[str, float]:
        """The weight of each reward by name, in order."""
        if self.rewards:
            return self.rewards
        right = {RIGHT_ANSWER: self.verifiable_reward_weight} if self.verifiable_reward_weight else {}
        return {LEARNED: 1 - self.verifiable_reward_weight, **right}

    def outside_parts(self) -> dict[str, OutsidePart]:
        """Return the method and the rewards that are not Pedigree's, by name."""
        rewards = [name for name in self.reward_parts if name not in REWARDS]
        found = {name: self._parts.find(REWARD_KIND, name, KNOWN_REWARDS, "rewards") for name in rewards}
        if self.method not in method_names():
            found[self.method] = self._parts.find(KIND, self.method, method_names(), "method")
        return found

    def _check_parts(self) -> None:
        """Raise RecipeError for rewards that cannot be added up, or settings that no part takes."""
        self._parts.check_used([self.method, *self.rewards], [*method_names(), *MODELLED], REWARDS)
        if self.method not in method_names():
            _ = self.own_settings  # checks itself
        for name, reward in self.reward_parts.items():
            _ = reward.check(name, self.reward_settings(name))
        if self.rewards and self.verifiable_reward_weight:
            raise RecipeError("align.verifiable_reward_weight: set the weight of right_answer in align.rewards instead")
        if self.rewards and not all(0 < weight < math.inf for weight in self.rewards.values()):
            raise RecipeError(f"align.rewards: {self.rewards}; each weight must be above 0")

    def _check_unsampled(self) -> None:
        unused = {"prompts": None, "prompt_columns": PromptColumns(), "max_steps": None}
        for name, unset in (unused | {"verifiable_reward_weight": 0.0, "rewards": {}}).items():
            if getattr(self, name) != unset:
                raise RecipeError(
                    f"align.{name}={getattr(self, name)!r} has no effect with method {self.method};"
                    f" remove it, or use {' or '.join(sampling_methods())}"
                )
        if self.watch.every is not None:
            raise RecipeError(
                f"align.watch.every={self.watch.every}: method {self.method} learns from no reward that could be"
                f" watched; null is right, or method {' or '.join(sampling_methods())}"
            )
        if not self.beta > 0:
            raise RecipeError(f"align.beta={self.beta}; method {self.method} needs one above 0")

    def _check_samples(self) -> None:
        if self.declared.compares_answers and self.num_generations != 2:
            raise RecipeError(
                f"align.num_generations={self.num_generations}: method {self.method} compares two answers to a prompt;"
                " 2 is right"
            )
        if self.declared.compares_answers and not self.beta > 0:
            raise RecipeError(f"align.beta={self.beta}; method {self.method} needs one above 0")
        if self.batch_size % self.num_generations:
            raise RecipeError(
                f"align.batch_size={self.batch_size} answers a step,"
                f" not a multiple of num_generations={self.num_generations}"
            )
        if self.watch.every is not None and (otherwise := sorted(GENERATES_OTHERWISE & self.trl.keys())):
            raise RecipeError(
                f"align.watch.every={self.watch.every}: answers that TRL draws by itself cannot be watched; remove"
                f" align.trl.{otherwise[0]}, or set every to null"
            )
