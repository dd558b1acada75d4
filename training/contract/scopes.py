"""Find the optional assets that a recipe asks for, and the model with which its chain ends. Standard library only."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from training.contract.stage import Input

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

KEPT_STEPS = "kept_steps"
AVERAGE = "average"  # the part of a name, as in `kitchen@average`, that means the average of kept steps
AVERAGED_MODEL = "averaged_model"
OPTIMIZER_FOLDER = "optimizer"  # of a kept step whose training can go on from it


def asks_for(recipe: Recipe, *sections: str) -> bool:
    """Whether a recipe sets one of the fields named in `sections`, such as `sft.data`; True if none is named.

    A recipe has no partition of an asset whose `Asset.sections` it does not ask for.
    """
    return not sections or any(bool(reduce(getattr, name.split("."), recipe)) for name in sections)


def step_part(step: int) -> str:
    """Return the part of a partition's key that names a kept step, such as `step-500`."""
    return f"step-{step}"


def begins_with_step(recipe: Recipe) -> bool:
    """Whether fine-tuning begins with a kept step; then the step is the base model of all that is made later."""
    return recipe.sft.from_step is not None


def begins_with_whole(recipe: Recipe) -> bool:
    """Whether the base model of all that is made later is that of the whole training."""
    return not begins_with_step(recipe)


def last_model(recipe: Recipe) -> str:
    """Return the asset of the recipe's last model. This model is registered and promoted."""
    if asks_for(recipe, "preferences.data"):
        return "aligned_model"
    return "sft_model" if asks_for(recipe, "sft.data") else "base_model"


def reads(recipe: Recipe, item: Input) -> bool:
    """Whether a recipe reads a declared input; the input's condition `when` decides."""
    return item.when is None or item.when(recipe)
