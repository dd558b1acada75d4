"""Find the optional assets that a recipe asks for, and the model with which its chain ends. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from training.contract.stage import Input

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

KEPT_STEPS = "kept_steps"
KEPT_LONG_STEPS = "kept_long_context_steps"
KEPT_ON_PAGES = (KEPT_STEPS, KEPT_LONG_STEPS)  # of trainings on pages
# Assets of kept steps, and that of the training's last model.
WHOLE = {
    KEPT_STEPS: "base_model",
    KEPT_LONG_STEPS: "long_context_model",
    "kept_sft_steps": "sft_model",
    "kept_align_steps": "aligned_model",
}
AVERAGE = "average"  # the part of a name, as in `kitchen@average`, that means the average of kept steps
AVERAGED_MODEL = "averaged_model"
CHOSEN_MODEL = "chosen_model"  # of the models of the last training, by `promote.best_by`
QUANTIZED = "quantized"  # likewise the last model in small numbers, as in `kitchen@quantized`
QUANTIZED_MODEL, QUANTIZED_SCORES = "quantized_model", "quantized_scores"
OPTIMIZER_FOLDER = "optimizer"  # of a kept step whose training can go on from it


def asks_for(recipe: Recipe, *sections: str) -> bool:
    """Whether a recipe sets one of the fields named in `sections`, such as `sft.data`; True if none is named.

    A recipe has no partition of an asset whose `Asset.sections` it does not ask for.
    """
    return not sections or any(bool(reduce(getattr, name.split("."), recipe)) for name in sections)


def step_part(step: int, section: str = "pretrain") -> str:
    """Return the part of a partition's key that names a kept step, such as `step-500` or `sft-step-50`."""
    return f"step-{step}" if section == "pretrain" else f"{section}-step-{step}"


def kept_parts(recipe: Recipe, section: str) -> list[str]:
    """Return the parts that name the kept steps of a training, in its order. A section of the recipe names it."""
    if section in ("pretrain", "long_context"):
        return [step_part(step, section) for step in getattr(recipe, section).kept_steps]
    return [f"{section}-{kept}" for kept in getattr(recipe, section).kept]


def kept_of(part: str) -> dict[str, dict[str, int]]:
    """Return the setting `kept` of the job of a kept step, given its part: `{"kept": {"step": 500}}`; empty for none.

    After a whole epoch it is `{"kept": {"epoch": 1}}`.
    """
    *_, unit, number = ("", *part.split("-"))
    return {"kept": {unit: int(number)}} if number else {}


def kept_in_words(settings: Mapping[str, Any]) -> str:
    """Return after what a model was kept, such as `step 500`, given the settings of its record; empty for others."""
    return " ".join(f"{unit} {number}" for unit, number in settings.get("kept", {}).items())


def whole_in_words(asset: str) -> str:
    """Return what the model of a kept step, or of an average, is one of, such as `base model` or `SFT model`.

    A whole model is one of itself.
    """
    whole = asset if asset in (*WHOLE.values(), CHOSEN_MODEL) else WHOLE.get(asset, "base_model")
    return whole.replace("_", " ").replace("sft", "SFT").replace("long context", "long-context")


def begins_with_step(recipe: Recipe) -> bool:
    """Whether fine-tuning begins with a kept step; then the step is the base model of all that is made later."""
    return recipe.sft.from_step is not None


def begins_with_whole(recipe: Recipe) -> bool:
    """Whether the base model of all that is made later is that of the whole training."""
    return not begins_with_step(recipe)


def last_model(recipe: Recipe) -> str:
    """Return the asset of the recipe's last model. This model is registered and promoted."""
    return CHOSEN_MODEL if recipe.promote.best_by else last_trained(recipe)


def last_trained(recipe: Recipe) -> str:
    """Return the asset of the recipe's last training, whether its last model is promoted or a better one chosen."""
    if asks_for(recipe, "preferences.data"):
        return "aligned_model"
    return "sft_model" if asks_for(recipe, "sft.data") else "base_model"


def is_replaced(recipe: Recipe, asset: str) -> bool:
    """Whether a model that is chosen of a training takes the place of the training's own model `asset`."""
    return bool(recipe.promote.best_by) and last_trained(recipe) == asset


def reads(recipe: Recipe, item: Input) -> bool:
    """Whether a recipe reads a declared input; the input's condition `when` decides."""
    return item.when is None or item.when(recipe)
