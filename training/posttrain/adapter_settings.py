"""Low-rank adapters (LoRA, arXiv 2106.09685) in the recipe: fields of peft's LoraConfig, and their earlier names."""

from __future__ import annotations

from typing import Any

from training.records import RecipeError

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
