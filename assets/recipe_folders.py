"""The folders in which recipes are searched by name. Only this module reads PEDIGREE_RECIPES."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from assets.chain import CHAIN
from training.places import local_path
from training.recipe import Recipe
from training.recipes import RecipeFiles

VARIABLE = "PEDIGREE_RECIPES"
SHIPPED = Path(__file__).parent / "recipes"


def recipe_folders(root: Path | None = None) -> tuple[Path, ...]:
    """The folders of recipes, in the order in which they are searched.

    First come the recipes saved under `root`, then the folders in PEDIGREE_RECIPES (separated by ':'), then the shipped
    recipes.
    """
    kept = [root / "recipes"] if root else []
    named = os.environ.get(VARIABLE, "")
    local_path(named, VARIABLE)  # an address would be divided at its colon
    added = [Path(folder) for folder in named.split(os.pathsep) if folder]
    return (*kept, *added, SHIPPED)


def find_recipe(name_or_path: str, folders: Iterable[Path] | None = None) -> Path:
    """The file of a recipe given by name or path. Raises RecipeError, which lists the known names, if there is none."""
    return recipe_files(folders).find(name_or_path)


def load_recipe(name_or_path: str, folders: Iterable[Path] | None = None) -> Recipe:
    """Load a recipe by name or path. Raises RecipeError, with file, field and value, for a mistake."""
    return recipe_files(folders).load(name_or_path)


def recipe_files(folders: Iterable[Path] | None = None) -> RecipeFiles:
    """Return the recipe files of some folders, or of those without a root, which the checks of all assets judge."""
    return RecipeFiles(recipe_folders() if folders is None else folders, CHAIN.values())
