"""Where recipes are looked for by name. The one module that reads PEDIGREE_RECIPES."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from training.recipe import Recipe
from training.recipes import RecipeFiles

SHIPPED = Path(__file__).parent / "recipes"


def recipe_folders(root: Path | None = None) -> tuple[Path, ...]:
    """Folders of recipes, in the order in which they are searched.

    Those that were kept under `root`, the folders of PEDIGREE_RECIPES (separated by ':'), the shipped ones.
    """
    kept = [root / "recipes"] if root else []
    added = [Path(folder) for folder in os.environ.get("PEDIGREE_RECIPES", "").split(os.pathsep) if folder]
    return (*kept, *added, SHIPPED)


def find_recipe(name_or_path: str, folders: Iterable[Path] | None = None) -> Path:
    """The file of a recipe given by name or path. RecipeError lists the names there are."""
    return _files(folders).find(name_or_path)


def load_recipe(name_or_path: str, folders: Iterable[Path] | None = None) -> Recipe:
    """The recipe given by name or path. RecipeError gives file, field, value and what is right."""
    return _files(folders).load(name_or_path)


def _files(folders: Iterable[Path] | None) -> RecipeFiles:
    return RecipeFiles(recipe_folders() if folders is None else folders)
