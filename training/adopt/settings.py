"""The recipe section `adopt`: a model, or a tokenizer alone, of somebody else with which the recipe begins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptRecipe:
    """The model that a recipe adopts, or the tokenizer with which it trains a model of its own; with the stated origin.

    Nothing is adopted if both are empty. Facts that the recipe leaves out are recorded as not known.
    """

    model: str = ""  # folder in the transformers layout, with weights in safetensors; data://… or a path
    tokenizer: str = ""  # folder with tokenizer.json and tokenizer_config.json; with `model`, its own one is adopted
    name: str = ""  # under which its publisher is found, such as HuggingFaceTB/SmolLM2-135M
    revision: str = ""  # commit or tag of that repository
    licence: str = ""  # SPDX name; "": what the README of the folder says
