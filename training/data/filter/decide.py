"""What a recipe's limits say of measured pages: the half of the rules that a changed limit asks again.

The other half is `training.data.filter.measure`. This one reads no text and imports nothing heavy.
"""

from __future__ import annotations

from training.data.filter.rule import Answer, Limit
from training.data.filter.rules import RULES
from training.data.filter.settings import FilterRecipe


def make_decisions(recipe: FilterRecipe) -> dict[str, Answer]:
    """Per rule of the recipe, in its order, what its limits say of a measured page."""
    return {name: RULES[name].decision(recipe) for name in recipe.rules}


def limits_of(recipe: FilterRecipe) -> dict[str, tuple[Limit, ...]]:
    """Per rule of the recipe, in its order, its limits in the order in which they are asked."""
    return {name: RULES[name].limits(recipe) for name in recipe.rules}
