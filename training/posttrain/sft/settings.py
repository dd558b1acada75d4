"""The recipe section `sft`: the conversations and the settings of supervised fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from training.contract.records import RecipeError
from training.posttrain.adapter_settings import can_be_spread
from training.posttrain.source_settings import TextSourceRecipe
from training.pretrain.optim.settings import Schedule, check_schedule
from training.pretrain.watch.steps_settings import KeptEpochsRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class SftRecipe:
    """Settings of supervised fine-tuning, with loss on assistant tokens only.

    `trl` sets other fields of SFTConfig. `peft` has the fields of LoraConfig for adapters, which are merged into the
    weights after training; empty: every weight is trained.
    """

    data: tuple[TextSourceRecipe, ...]
    from_step: int | None = None  # the kept step of pretraining to begin with; None: the model after the last step
    chat_template: str = "pedigree"
    system_prompt: str | None = None  # None: no system message is added
    epochs: float = 2.0
    learning_rate: float = 5e-4
    batch_size: int = 32  # in conversations
    max_length: int = 256
    schedule: Schedule = "cosine"  # as in pretraining
    warmup_fraction: float = 0.05
    decay_fraction: float = 0.2
    final_learning_rate_fraction: float = 0.1
    precision: Literal["bf16", "fp32"] = "bf16"  # precision of matrix products; weights and optimizer are in fp32
    peft: dict[str, Any] = field(default_factory=dict)
    trl: dict[str, Any] = field(default_factory=dict)
    keep: KeptEpochsRecipe = field(default_factory=KeptEpochsRecipe)
    seed: int = 0

    def __post_init__(self) -> None:
        check_schedule(self, "sft")
        if self.kept and not self.data:
            raise RecipeError("sft.keep: without effect, because sft.data names no conversations")

    @property
    def kept(self) -> tuple[str, ...]:
        """The steps or epochs after which the model is kept, such as `epoch-1`, in training order."""
        return self.keep.kept("sft.keep", epochs=self.epochs)

    @property
    def unkept(self) -> SftRecipe:
        """The settings of the training, on which what is kept has no influence."""
        return replace(self, keep=KeptEpochsRecipe())

    @property
    def can_be_spread(self) -> bool:
        """Whether the profile's `shard` divides the weights; otherwise each process has the whole model."""
        return can_be_spread(self.peft)
