"""Low-rank adapters (LoRA, arXiv 2106.09685) in the recipe: fields of peft's LoraConfig, and their earlier names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.records import RecipeError

KEEPS_WEIGHTS = (True, False, "gaussian", "orthogonal")  # initializations that leave the model's own weights alone
NEED_WHOLE = ("use_dora", "modules_to_save", "trainable_token_indices", "target_parameters")
_NOW = {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout"}  # `lora` of earlier editions, in peft's names
_BEFORE = {"alpha": 16, "dropout": 0.0}  # what earlier editions took for a field that a recipe left out


def peft_of_lora(lora: Any, where: str) -> dict[str, Any]:
    """Return the field `peft` for an earlier edition's `lora`, {rank, alpha, dropout}; rank 0 meant no adapters."""
    known = ", ".join(_NOW)
    if not isinstance(lora, dict) or lora.keys() - _NOW.keys():
        raise RecipeError(f"{where}: {lora!r}; it was a mapping of {known}. Write peft, with peft's names, instead")
    if not lora.get("rank"):
        return {"peft": {}}
    given = {**_BEFORE, **lora}
    return {"peft": {now: given[name] for name, now in _NOW.items()}}


def keeps_weights(peft: Mapping[str, Any]) -> bool:
    """Whether the initialization of the adapters leaves the model's own weights alone."""
    return peft.get("init_lora_weights", True) in KEEPS_WEIGHTS


def can_be_spread(peft: Mapping[str, Any]) -> bool:
    """Whether adapters, or none, can be trained beside weights that are divided among processes.

    Others are computed from whole weights, or are copies of whole layers.
    """
    return keeps_weights(peft) and not any(peft.get(field) for field in NEED_WHOLE)
