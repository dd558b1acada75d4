"""The field of the recipe section `align` that names the prompts for reinforcement learning."""

from __future__ import annotations

from dataclasses import dataclass

from training.records import Uri


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptsRecipe:
    """The file of prompts of `align`, without the settings of the training."""

    prompts: Uri
