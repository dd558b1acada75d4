"""The recipe section `adopt`: a model of somebody else with which the recipe begins."""

from __future__ import annotations

from dataclasses import dataclass

from training.records import formerly


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptRecipe:
    """The model that a recipe adopts, and its stated origin; no model is adopted if `model` is None.

    Facts that are None are recorded as not known.
    """

    model: str | None = formerly("")  # folder in the transformers layout, with safetensors; data://… or a path
    name: str | None = formerly("")  # under which its publisher is found, such as HuggingFaceTB/SmolLM2-135M
    revision: str | None = formerly("")  # commit or tag of that repository
    licence: str | None = formerly("")  # SPDX name; None: what the README of the folder says
