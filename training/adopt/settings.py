"""The recipe section `adopt`: a model of somebody else with which the recipe begins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptRecipe:
    """The model that a recipe adopts, and its stated origin; no model is adopted if `model` is empty.

    Facts that the recipe leaves out are recorded as not known.
    """

    model: str = ""  # folder in the transformers layout, with weights in safetensors; data://… or a path
    name: str = ""  # under which its publisher is found, such as HuggingFaceTB/SmolLM2-135M
    revision: str = ""  # commit or tag of that repository
    licence: str = ""  # SPDX name; "": what the README of the folder says
