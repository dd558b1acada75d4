"""The stage `preferences` and its asset, the preference pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.data.sections import with_data
from training.posttrain.source_settings import withdrawn_of
from training.stage import Asset, Input, Stage

if TYPE_CHECKING:
    from training.recipe import Recipe

PREFERENCES = Stage(
    name="preferences",
    version="4",
    module="training.posttrain.preferences.preferences",
    libraries=("xxhash",),
    kinds=("json",),
    gates=("counts_balance",),
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


ASSETS = (
    Asset(
        name="preference_data",
        stage=PREFERENCES,
        description="Prompts with a chosen and a rejected answer, each with its source.",
        group="instructions",
        scope="section",
        sections=("preferences.data",),
        settings=_settings,
        inputs=(Input(asset="benchmark_index"),),
    ),
)
