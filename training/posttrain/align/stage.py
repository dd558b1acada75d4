"""The stage `align` and its asset, the aligned model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.contract.blocking_checks import CLEAN_DATA
from training.contract.stage import Asset, Input, Stage
from training.data.sections import with_data
from training.posttrain.align.method import start_gates
from training.posttrain.align.prompts import PROMPTS_FIT
from training.posttrain.passed_through import check_passed_through, shape_trained
from training.posttrain.preferences.fits import pairs_fit

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

ALIGN = Stage(
    name="align",
    version="24",
    module="training.posttrain.align.align",
    parts=(
        ("training.posttrain.methods", "none"),
        ("training.posttrain.rewards", "none"),
    ),
    libraries=("torch", "transformers", "trl", "peft"),
    kinds=("trl", "safetensors"),
    gates=("counts_balance", "loss_finite", *start_gates(), "merged_equals_adapter"),
    distributed=True,
    by_a_model=True,
)


def _settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the section `align` without its prompts, which are an input of the stage."""
    del part
    return with_data(recipe, {"align": recipe.align.without_prompts})


def _samples(recipe: Recipe) -> bool:
    """Whether the method samples answers and learns from their rewards, and so needs the reward model."""
    return recipe.align.declared.learns_from == "samples"


def _check_libraries(recipe: Recipe) -> None:
    check_passed_through(recipe.align, recipe.align.declared.config, where="align", shape=shape_trained(recipe))


ASSETS = (
    Asset(
        name="aligned_model",
        stage=ALIGN,
        description="The SFT model aligned by the preference method that the recipe names.",
        group="posttraining",
        scope="section",
        sections=("preferences.data",),
        settings=_settings,
        inputs=(
            Input(asset="sft_model"),
            Input(asset="preference_data"),
            Input(asset="prompt_data"),
            Input(asset="reward_model", when=_samples),
        ),
        guards=CLEAN_DATA,
        checks=(_check_libraries,),
        facts=(pairs_fit("align", lambda recipe: recipe.align.max_length), PROMPTS_FIT),
    ),
)
