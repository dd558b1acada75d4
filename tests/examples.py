"""The recipes that a clone has beside the shipped ones."""

from __future__ import annotations

from pathlib import Path

from assets.recipe_folders import SHIPPED, load_recipe
from training.recipe import Recipe

EXAMPLES = Path(__file__).parents[1] / "examples" / "recipes"
RECIPE_FILES = sorted((*SHIPPED.glob("*.yaml"), *EXAMPLES.glob("*.yaml")))
"""Every recipe of the project."""


def example(name: str) -> Recipe:
    """Return a recipe of `examples/recipes`."""
    return load_recipe(str(EXAMPLES / f"{name}.yaml"))
