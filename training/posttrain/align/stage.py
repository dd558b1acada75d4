"""The stage `align` and its asset, the aligned model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from training.contract.blocking_checks import CLEAN_DATA
from training.contract.scopes import kept_of
from training.contract.stage import Asset, Input, Stage
from training.data.sections import with_data
from training.posttrain.align.method import start_gates
from training.posttrain.align.prompts import PROMPTS_FIT
from training.posttrain.align.sampling.goodhart import NAME
from training.posttrain.passed_through import check_passed_through, shape_trained
from training.posttrain.preferences.fits import pairs_fit

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

ALIGN = Stage(
    name="align",
    version="27",
    module="training.posttrain.align.align",
    parts=(
        ("training.posttrain.methods", "none"),
        ("training.posttrain.rewards", "none"),
    ),
    libraries=("torch", "transformers", "trl", "peft"),
    kinds=("trl", "safetensors"),
    gates=("counts_balance", "loss_finite", *start_gates(), NAME, "merged_equals_adapter"),
    distributed=True,
    by_a_model=True,
    context=("watch", "watched_data"),
)


def _settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the section `align` without its prompts, which are an input of the stage, and without what is watched.

    That is a section of its own, with `watched_data` by which a file of watched prompts is read. Where it may end the
    training, the fingerprint has it as `stopped_by`. No model is trained on its prompts, so no `Uri` names them there.
    `part` says after what a model is kept, which nothing watches.
    """
    watch = recipe.align.watch
    settings = with_data(recipe, {"align": recipe.align.without_prompts})
    if part or watch.every is None:
        return settings | kept_of(part)
    data = with_data(recipe, {"watch": watch})
    del data["watch"]
    settings |= {"watch": watch, "watched_data": data}
    if watch.stops:
        files = sorted(data.get("data", {}).values())
        settings["stopped_by"] = {"watch": replace(watch, prompts=None), **data, "data": files}
    return settings


def _samples(recipe: Recipe) -> bool:
    """Whether the method samples answers and learns from their rewards, and so needs the reward model."""
    return recipe.align.declared.learns_from == "samples"


def _check_libraries(recipe: Recipe) -> None:
    check_passed_through(recipe.align, recipe.align.declared.config, where="align", shape=shape_trained(recipe))


_INPUTS = (
    Input(asset="sft_model"),
    Input(asset="preference_data"),
    Input(asset="prompt_data"),
    Input(asset="reward_model", when=_samples),
)

ASSETS = (
    Asset(
        name="aligned_model",
        stage=ALIGN,
        description="The SFT model aligned by the preference method that the recipe names.",
        group="posttraining",
        scope="section",
        sections=("preferences.data",),
        settings=_settings,
        inputs=_INPUTS,
        guards=CLEAN_DATA,
        checks=(_check_libraries,),
        facts=(pairs_fit("align", lambda recipe: recipe.align.max_length), PROMPTS_FIT),
    ),
    Asset(
        name="kept_align_steps",
        stage=ALIGN,
        description=(
            "The aligned model as it was after a step or an epoch. Its training writes it on the way; one that is "
            "asked for later is made by training again up to it."
        ),
        group="posttraining",
        scope="step",
        sections=("align.keep.is_asked",),
        settings=_settings,
        inputs=_INPUTS,
        guards=(*CLEAN_DATA, Input(asset="aligned_model")),
    ),
)
