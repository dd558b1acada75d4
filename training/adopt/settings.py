"""The recipe section `adopt`: a model, or a tokenizer alone, of somebody else with which the recipe begins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptRecipe:
    """The model that a recipe adopts, or the tokenizer with which it trains a model of its own; with the stated origin.

    Nothing is adopted if both are None. Facts that are None are recorded as not known.
    """

    model: str | None = None  # folder in the transformers layout, with safetensors; data://… or a path
    tokenizer: str | None = None  # folder with tokenizer.json and tokenizer_config.json; only without `model`
    name: str | None = None  # under which its publisher is found, such as HuggingFaceTB/SmolLM2-135M
    revision: str | None = None  # commit or tag of that repository
    licence: str | None = None  # SPDX name; None: what the README of the folder says
