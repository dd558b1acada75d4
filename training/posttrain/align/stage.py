"""The stage `align` and its asset, the aligned model."""

from __future__ import annotations

from training.data.sections import sections
from training.posttrain.align.method import start_gates
from training.stage import Asset, Input, Stage

ALIGN = Stage(
    name="align",
    version="3",
    module="training.posttrain.align.align",
    libraries=("torch", "transformers", "trl", "peft"),
    kinds=("trl", "safetensors"),
    gates=("counts_balance", "loss_finite", *start_gates(), "merged_equals_adapter"),
    distributed=True,
    by_a_model=True,
)

ASSETS = (
    Asset(
        name="aligned_model",
        stage=ALIGN,
        description="The SFT model aligned by the preference method that the recipe names.",
        group="models",
        scope="recipe",
        settings=sections("align"),
        inputs=(Input(asset="sft_model"), Input(asset="preference_data"), Input(asset="reward_model")),
    ),
)
