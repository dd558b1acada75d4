"""The stage `sft` and its asset, the fine-tuned model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.contract.blocking_checks import CLEAN_DATA
from training.contract.scopes import KEPT_STEPS, asks_for, begins_with_step, begins_with_whole
from training.contract.stage import Asset, Input, Stage
from training.data.sections import sections
from training.posttrain.passed_through import check_passed_through, shape_trained
from training.posttrain.sft.fits import CONVERSATIONS_FIT

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

SFT = Stage(
    name="sft",
    version="17",
    module="training.posttrain.sft.sft",
    libraries=("torch", "transformers", "trl", "peft"),
    kinds=("trl", "safetensors"),
    gates=("counts_balance", "template", "loss_finite_and_falling", "merged_equals_adapter"),
    distributed=True,
    reads=("instruction_data",),
    by_a_model=True,
)


def _stays_short(recipe: Recipe) -> bool:
    """Whether fine-tuning begins with the whole base model, as the recipe has no long-context stage and no step."""
    return not recipe.long_context.tokens and begins_with_whole(recipe)


def _begins_with_adopted(recipe: Recipe) -> bool:
    return not asks_for(recipe, "snapshots")


def _check_template(recipe: Recipe) -> None:
    from training.generate.turns import template

    template(recipe.sft.chat_template)  # raises if there is none of that name


def _check_libraries(recipe: Recipe) -> None:
    check_passed_through(recipe.sft, "SFTConfig", where="sft", shape=shape_trained(recipe))


ASSETS = (
    Asset(
        name="sft_model",
        stage=SFT,
        description="The base model fine-tuned on conversations; only the assistant's tokens count in the loss.",
        group="posttraining",
        scope="section",
        sections=("sft.data",),
        settings=sections("sft"),
        inputs=(
            Input(asset="base_model", when=_stays_short),
            Input(asset=KEPT_STEPS, which="sft", when=begins_with_step),
            Input(asset="long_context_model"),
            Input(asset="adopted_model", when=_begins_with_adopted),
            Input(asset="instruction_data"),
        ),
        guards=CLEAN_DATA,
        checks=(_check_template, _check_libraries),
        facts=(CONVERSATIONS_FIT,),
    ),
)
