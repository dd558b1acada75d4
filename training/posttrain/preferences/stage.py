"""The stage `preferences` and its asset, the preference pairs."""

from __future__ import annotations

from training.data.sections import sections
from training.stage import Asset, Stage

PREFERENCES = Stage(
    name="preferences",
    version="1",
    module="training.posttrain.preferences.preferences",
    kinds=("json",),
    gates=("counts_balance",),
)

ASSETS = (
    Asset(
        name="preference_data",
        stage=PREFERENCES,
        description="Prompts with a chosen and a rejected answer, each with its source.",
        group="models",
        scope="align",
        settings=sections("preferences"),
    ),
)
