"""The stage `reward` and its asset, the reward model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.contract.blocking_checks import CLEAN_DATA
from training.contract.stage import Asset, Input, Stage
from training.data.sections import sections
from training.posttrain.passed_through import check_passed_through, shape_trained
from training.posttrain.preferences.fits import pairs_fit

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

REWARD = Stage(
    name="reward",
    version="17",
    module="training.posttrain.reward.reward",
    libraries=("torch", "transformers", "trl", "peft"),
    kinds=("trl", "safetensors"),
    gates=("counts_balance", "loss_finite", "held_out_pair_accuracy", "merged_equals_adapter"),
    distributed=True,
    reads=("preference_data",),
    by_a_model=True,
)


def _check_libraries(recipe: Recipe) -> None:
    check_passed_through(recipe.reward, "RewardConfig", where="reward", shape=shape_trained(recipe))


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
        checks=(_check_libraries,),
        facts=(pairs_fit("reward", lambda recipe: recipe.reward.max_length),),
    ),
)
