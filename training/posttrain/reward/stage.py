"""The stage `reward` and its asset, the reward model."""

from __future__ import annotations

from training.data.sections import sections
from training.guards import CLEAN_DATA
from training.stage import Asset, Input, Stage

REWARD = Stage(
    name="reward",
    version="8",
    module="training.posttrain.reward.reward",
    libraries=("torch", "transformers", "trl", "peft"),
    kinds=("trl", "safetensors"),
    gates=("counts_balance", "loss_finite", "held_out_pair_accuracy", "merged_equals_adapter"),
    distributed=True,
    reads=("preference_data",),
    by_a_model=True,
)

ASSETS = (
    Asset(
        name="reward_model",
        stage=REWARD,
        description="A reward model (Bradley-Terry) trained on the preferences, with its accuracy on held-out pairs.",
        group="posttraining",
        scope="section",
        sections=("preferences.data",),
        settings=sections("reward"),
        inputs=(Input(asset="sft_model"), Input(asset="preference_data")),
        guards=CLEAN_DATA,
    ),
)
