"""The stage `instructions` and its asset, the conversations for fine-tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.contract.stage import Asset, Input, Stage
from training.data.sections import with_data
from training.posttrain.source_settings import withdrawn_of

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

INSTRUCTIONS = Stage(
    name="instructions",
    version="12",
    module="training.posttrain.instructions.instructions",
    libraries=("xxhash",),
    kinds=("json",),
    gates=("counts_balance", "every_source_gives"),
)


def _settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return only the sources of `sft`, because the settings of the training belong to the stage `sft`."""
    del part
    gone = withdrawn_of(recipe.withdrawals.rows)
    return with_data(
        recipe,
        {
            "sft": {"data": recipe.sft.data},
            "decontaminate": recipe.decontaminate.actions,
            **gone,
        },
    )


ASSETS = (
    Asset(
        name="instruction_data",
        stage=INSTRUCTIONS,
        description="Conversations for supervised fine-tuning, each with its source and generator.",
        group="instructions",
        scope="section",
        sections=("sft.data",),
        settings=_settings,
        inputs=(Input(asset="benchmark_index"),),
    ),
)
