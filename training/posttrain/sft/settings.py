"""The recipe section `sft`: the conversations and the settings of supervised fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from training.posttrain.lora_settings import LoraRecipe
from training.posttrain.source_settings import TextSourceRecipe
from training.records import formerly


@dataclass(frozen=True, kw_only=True, slots=True)
class SftRecipe:
    """Settings of supervised fine-tuning, with loss on assistant tokens only. `trl` sets other fields of SFTConfig."""

    data: tuple[TextSourceRecipe, ...]
    chat_template: str = "pedigree"
    system_prompt: str | None = formerly("")  # None: no system message is added
    epochs: float = 2.0
    learning_rate: float = 5e-4
    batch_size: int = 32  # in conversations
    max_length: int = 256
    warmup_fraction: float = 0.05
    precision: Literal["bf16", "fp32"] = "bf16"  # precision of matrix products; weights and optimizer are in fp32
    lora: LoraRecipe = field(default_factory=LoraRecipe)
    trl: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
