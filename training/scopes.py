"""Which optional assets a recipe asks for. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from training.stage import Input, Scope

if TYPE_CHECKING:
    from training.recipe import Recipe

_OPTIONAL: dict[Scope, Callable[[Recipe], bool]] = {
    "ladder": lambda recipe: bool(recipe.ladder.rungs),
    "long_context": lambda recipe: recipe.long_context.tokens > 0,
    "prompts": lambda recipe: bool(recipe.align.prompts),
    "synthesis": lambda recipe: bool(recipe.synthesis.prompts),
    "doremi": lambda recipe: bool(recipe.doremi.tokens),
}


def has_assets(recipe: Recipe, scope: Scope) -> bool:
    """Whether a recipe asks for the assets of a scope. If it does not, those assets have no partition for it."""
    return scope not in _OPTIONAL or _OPTIONAL[scope](recipe)


def reads(recipe: Recipe, item: Input) -> bool:
    """Whether a recipe reads an input that its chain has, by the input's own condition."""
    return item.when is None or item.when(recipe)
