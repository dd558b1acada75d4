"""The recipe section `preferences`: the sources of preference pairs, and the share that is held out."""

from __future__ import annotations

from dataclasses import dataclass

from training.posttrain.source_settings import TextSourceRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferencesRecipe:
    """The settings of preference pairs: sources of prompts with a chosen and a rejected answer."""

    data: tuple[TextSourceRecipe, ...]
    held_out_fraction: float = 0.1
