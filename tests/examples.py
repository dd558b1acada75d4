"""The shipped recipes, and those that a clone has beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

PROJECT = Path(__file__).parents[1]
EXAMPLES = PROJECT / "examples" / "recipes"
RECIPE_FILES = sorted((*(PROJECT / "assets" / "recipes").glob("*.yaml"), *EXAMPLES.glob("*.yaml")))
"""Every recipe of the project."""


def load_recipe(name: str) -> Recipe:
    """Return the recipe of a name or file."""
    from assets.state import recipe_folders  # imports the settings of all stages

    return recipe_folders.load_recipe(name)


def example(name: str) -> Recipe:
    """Return a recipe of `examples/recipes`."""
    return load_recipe(str(EXAMPLES / f"{name}.yaml"))
