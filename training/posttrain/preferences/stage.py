"""The stage `preferences` and its asset, the preference pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.contract.records import RecipeError
from training.contract.stage import Asset, Input, Stage
from training.data.sections import with_data
from training.posttrain.source_settings import withdrawn_of

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

PREFERENCES = Stage(
    name="preferences",
    version="12",
    module="training.posttrain.preferences.preferences",
    libraries=("xxhash",),
    kinds=("json",),
    gates=("counts_balance", "every_source_gives"),
)


def _settings(recipe: Recipe, part: str) -> dict[str, Any]:
    del part
    gone = withdrawn_of(recipe.withdrawals.rows)
    return with_data(
        recipe,
        {
            "preferences": recipe.preferences,
            "decontaminate": recipe.decontaminate.actions,
            **gone,
        },
    )


def _check_held_out(recipe: Recipe) -> None:
    if not 0 < recipe.preferences.held_out_fraction < 1:
        raise RecipeError(
            f"preferences.held_out_fraction={recipe.preferences.held_out_fraction:g}; pairs are needed to train on and"
            " to judge by, so it must lie between 0 and 1"
        )


ASSETS = (
    Asset(
        name="preference_data",
        stage=PREFERENCES,
        description="Prompts with a chosen and a rejected answer, each with its source.",
        group="instructions",
        scope="section",
        sections=("preferences.data",),
        settings=_settings,
        checks=(_check_held_out,),
        inputs=(Input(asset="benchmark_index"),),
    ),
)
