"""Apply a recipe's limits to measured pages: the part of the rules that runs again when a limit changes.

The other part is `training.data.filter.judge`, which measures pages. This module reads no text and imports nothing
heavy.
"""

from __future__ import annotations

from training.data.filter.rule import Answer, Limit
from training.data.filter.rules import RULES
from training.data.filter.settings import FilterRecipe


def make_decisions(recipe: FilterRecipe) -> dict[str, Answer]:
    """Return for each rule of the recipe, in order, a function that applies its limits to a measured page."""
    return {name: RULES[name].decision(recipe) for name in recipe.rules}


def limits_of(recipe: FilterRecipe) -> dict[str, tuple[Limit, ...]]:
    """Return the limits of each rule of the recipe; rules and limits are in the order in which they are applied."""
    return {name: RULES[name].limits(recipe) for name in recipe.rules}
