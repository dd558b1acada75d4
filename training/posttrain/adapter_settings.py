"""Low-rank adapters (LoRA, arXiv 2106.09685) in the recipe: which fields of peft's LoraConfig need whole weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEEPS_WEIGHTS = (True, False, "gaussian", "orthogonal")  # initializations that leave the model's own weights alone
NEED_WHOLE = ("use_dora", "modules_to_save", "trainable_token_indices", "target_parameters")


def keeps_weights(peft: Mapping[str, Any]) -> bool:
    """Whether the initialization of the adapters leaves the model's own weights alone."""
    return peft.get("init_lora_weights", True) in KEEPS_WEIGHTS


def can_be_spread(peft: Mapping[str, Any]) -> bool:
    """Whether adapters, or none, can be trained beside weights that are divided among processes.

    Others are computed from whole weights, or are copies of whole layers.
    """
    return keeps_weights(peft) and not any(peft.get(field) for field in NEED_WHOLE)
