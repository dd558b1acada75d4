"""The section `preferences`."""

from __future__ import annotations

from dataclasses import dataclass

from training.posttrain.source_settings import TextSourceRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferencesRecipe:
    """Prompts with a chosen and a rejected answer."""

    data: tuple[TextSourceRecipe, ...]
    held_out_fraction: float = 0.1
