"""The recipe section `preferences`: the sources of preference pairs, and the share that is held out."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.records import RecipeError
from training.posttrain.source_settings import TextSourceRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferencesRecipe:
    """The settings of preference data: sources of prompts with a chosen and a rejected answer, or with one answer."""

    data: tuple[TextSourceRecipe, ...]
    held_out_fraction: float = 0.1

    def __post_init__(self) -> None:
        if self.data and all(source.format == "unpaired" for source in self.data):
            raise RecipeError(
                "preferences.data: only unpaired answers; the reward model learns from pairs, so name a source of pairs"
                " too"
            )
