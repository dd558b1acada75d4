"""The recipe section `synthesis`: text that a model of the recipe writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.contract.records import RecipeError, Uri, check_above_zero

GeneratorAsset = Literal["base_model", "long_context_model", "sft_model", "aligned_model"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SynthesisRecipe:
    """Settings of text that a model of this recipe writes for other recipes to train on.

    Without `prompts`, no text is written.
    """

    prompts: Uri | None = None  # file with rows that have a text in `prompt_field`; None: nothing is written
    prompt_field: str = "prompt"
    prompt_words: int | None = None  # number of words of the row's text that are used; None: all
    template: str = "{prompt}"  # the prompt for the model; {prompt} is replaced by the row's text
    limit: int | None = None  # number of prompts that are used; None: all
    generator: GeneratorAsset = "base_model"
    texts_per_prompt: int = 1
    temperature: float = 0.8  # 0: always the likeliest token
    top_p: float = 1.0  # below 1: draw only from the likeliest tokens that together have this probability
    max_new_tokens: int = 128
    batch_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if "{prompt}" not in self.template:
            raise RecipeError(f"synthesis.template={self.template!r}; it must hold {{prompt}}")
        check_above_zero(self, "synthesis", "prompt_words", "limit")
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise RecipeError(
                f"synthesis: temperature={self.temperature} may not be negative; top_p={self.top_p} must be above 0,"
                " to 1"
            )
        if min(self.texts_per_prompt, self.max_new_tokens, self.batch_size) < 1:
            raise RecipeError(
                f"synthesis: texts_per_prompt={self.texts_per_prompt}, max_new_tokens={self.max_new_tokens} and"
                f" batch_size={self.batch_size} must be at least 1"
            )
