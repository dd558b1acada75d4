"""The stage `sft` and its asset, the fine-tuned model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.contract.blocking_checks import CLEAN_DATA
from training.contract.scopes import KEPT_STEPS, asks_for, begins_with_step, begins_with_whole, kept_of
from training.contract.stage import Asset, Input, Stage
from training.data.sections import with_data
from training.posttrain.passed_through import check_passed_through, shape_trained
from training.posttrain.sft.fits import CONVERSATIONS_FIT

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

SFT = Stage(
    name="sft",
    version="19",
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


def _settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the section `sft`, and the step or epoch after which a model is kept."""
    return with_data(recipe, {"sft": recipe.sft.unkept}) | kept_of(part)


_INPUTS = (
    Input(asset="base_model", when=_stays_short),
    Input(asset=KEPT_STEPS, which="sft", when=begins_with_step),
    Input(asset="long_context_model"),
    Input(asset="adopted_model", when=_begins_with_adopted),
    Input(asset="instruction_data"),
)

ASSETS = (
    Asset(
        name="sft_model",
        stage=SFT,
        description="The base model fine-tuned on conversations; only the assistant's tokens count in the loss.",
        group="posttraining",
        scope="section",
        sections=("sft.data",),
        settings=_settings,
        inputs=_INPUTS,
        guards=CLEAN_DATA,
        checks=(_check_template, _check_libraries),
        facts=(CONVERSATIONS_FIT,),
    ),
    Asset(
        name="kept_sft_steps",
        stage=SFT,
        description=(
            "The fine-tuned model as it was after a step or an epoch. Its training writes it on the way; one that is "
            "asked for later is made by training again up to it."
        ),
        group="posttraining",
        scope="step",
        sections=("sft.keep.is_asked",),
        settings=_settings,
        inputs=_INPUTS,
        guards=(*CLEAN_DATA, Input(asset="sft_model")),
    ),
)
