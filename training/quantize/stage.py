"""The stage `quantize` and its asset, the recipe's last model in small numbers."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from training.contract.records import RecipeError
from training.contract.scopes import CHOSEN_MODEL, QUANTIZED_MODEL, last_model
from training.contract.stage import Asset, Input, Stage
from training.posttrain.passed_through import shape_trained
from training.quantize.settings import QuantizeRecipe

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

QUANTIZE = Stage(
    name="quantize",
    version="1",
    module="training.quantize.quantize",
    libraries=("safetensors", "torch", "torchao", "transformers"),
    kinds=("pytorch", "safetensors"),
    gates=("opens_as_written",),
    by_a_model=True,
)


def _ends_with(recipe: Recipe, *, model: str) -> bool:
    return last_model(recipe) == model


def _settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the method; how much may be lost is judged later."""
    del part
    return {"quantize": replace(recipe.quantize, max_drop=QuantizeRecipe().max_drop)}


def _check_installed(recipe: Recipe) -> None:
    if importlib.util.find_spec("torchao") is None:
        raise RecipeError(
            f"quantize.method: {recipe.quantize.method} needs torchao, which is not installed; pip install"
            " 'pedigree[fp8]'"
        )


def _check_groups(recipe: Recipe) -> None:
    """Raise RecipeError if the groups do not divide the rows of a matrix, as far as the model's shape is known here."""
    group, shape = recipe.quantize.group, shape_trained(recipe)
    if group is None or shape is None:
        return
    columns = {
        "model.width": shape.width,
        "the width of all heads": shape.head_widths.mixed,
        "model.mlp_width": shape.mlp_width,
    }
    for name, number in columns.items():
        if number % group:
            raise RecipeError(
                f"quantize.group_size={group} does not divide {name} ({number}), the columns of a matrix; a divisor of"
                f" {', '.join(str(one) for one in sorted(set(columns.values())))} is right"
            )


ASSETS = (
    Asset(
        name=QUANTIZED_MODEL,
        stage=QUANTIZE,
        description="The recipe's last model with its matrices in 8 or 4 bits, beside it and never in its place.",
        group="evaluation",
        scope="section",
        sections=("quantize.is_asked",),
        settings=_settings,
        inputs=tuple(
            Input(asset=name, when=partial(_ends_with, model=name))
            for name in ("base_model", "sft_model", "aligned_model", CHOSEN_MODEL)
        ),
        checks=(_check_installed, _check_groups),
    ),
)
