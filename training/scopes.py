"""Find the optional assets that a recipe asks for, and the model with which its chain ends. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from training.stage import Input, Scope

if TYPE_CHECKING:
    from training.recipe import Recipe

_OPTIONAL: dict[Scope, Callable[[Recipe], bool]] = {
    "adopt": lambda recipe: bool(recipe.adopt.model),
    "corpus": lambda recipe: bool(recipe.snapshots),
    "ladder": lambda recipe: bool(recipe.ladder.rungs),
    "long_context": lambda recipe: bool(recipe.long_context.tokens),
    "prompts": lambda recipe: bool(recipe.align.prompts),
    "synthesis": lambda recipe: bool(recipe.synthesis.prompts),
    "doremi": lambda recipe: bool(recipe.doremi.tokens),
    "sft": lambda recipe: bool(recipe.sft.data),
    "align": lambda recipe: bool(recipe.preferences.data),
    "rows": lambda recipe: any(has_assets(recipe, scope) for scope in ("sft", "align", "prompts")),
}


def last_model(recipe: Recipe) -> str:
    """Return the asset of the recipe's last model. This model is registered and promoted."""
    if has_assets(recipe, "align"):
        return "aligned_model"
    return "sft_model" if has_assets(recipe, "sft") else "base_model"


def has_assets(recipe: Recipe, scope: Scope) -> bool:
    """Whether a recipe asks for the assets of a scope, such as that of the recipes with a ladder.

    If not, they have no partition for it.
    """
    return scope not in _OPTIONAL or _OPTIONAL[scope](recipe)


def pretrains(recipe: Recipe) -> bool:
    """Whether a recipe trains a base model. A recipe without a corpus does not: it begins with an adopted model."""
    return has_assets(recipe, "corpus")


def reads(recipe: Recipe, item: Input) -> bool:
    """Whether a recipe reads a declared input; the input's condition `when` decides."""
    return item.when is None or item.when(recipe)
