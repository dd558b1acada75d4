"""The stage `prompts` and its asset, the prompts for reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.contract.stage import Asset, Input, Stage
from training.data.sections import with_data
from training.posttrain.prompts.settings import PromptsRecipe
from training.posttrain.source_settings import withdrawn_of

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

PROMPTS = Stage(
    name="prompts",
    version="12",
    module="training.posttrain.prompts.prompts",
    libraries=("xxhash",),
    kinds=("json",),
    gates=("counts_balance", "every_source_gives"),
)


def _settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return only the file of prompts, because the settings of the training belong to the stage `align`."""
    del part
    assert recipe.align.prompts is not None  # else the asset is not part of the recipe
    gone = withdrawn_of(recipe.withdrawals.rows)
    asked = PromptsRecipe(prompts=recipe.align.prompts, prompt_columns=recipe.align.prompt_columns)
    return with_data(recipe, {"align": asked, "decontaminate": recipe.decontaminate.actions, **gone})


ASSETS = (
    Asset(
        name="prompt_data",
        stage=PROMPTS,
        description="Prompts for reinforcement learning. Some have a right answer, by which a reward is given.",
        group="instructions",
        scope="section",
        sections=("align.prompts",),
        settings=_settings,
        inputs=(Input(asset="benchmark_index"),),
    ),
)
