"""The folders in which recipes are searched by name. Only this module reads PEDIGREE_RECIPES.

The recipes that a root keeps are found by name, and are no bases: a file that a person writes means what is shipped,
not what an earlier run made of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from assets.state.chain import CHAIN
from training.contract.user_input.places import local_path
from training.recipe.recipe import Recipe
from training.recipe.recipes import RecipeFiles

VARIABLE = "PEDIGREE_RECIPES"
SHIPPED = Path(__file__).parents[1] / "recipes"


@dataclass(frozen=True, slots=True)
class RecipeFolders:
    """Folders in which recipes are searched by name: those a root keeps first, then those of bases."""

    kept: tuple[Path, ...]
    bases: tuple[Path, ...]

    @property
    def own(self) -> tuple[Path, ...]:
        """The folders of people: those of the root and of PEDIGREE_RECIPES, without the shipped recipes."""
        return (*self.kept, *self.bases[:-1])

    def __iter__(self) -> Iterator[Path]:
        return iter((*self.kept, *self.bases))


def recipe_folders(root: Path | None = None) -> RecipeFolders:
    """The folders of recipes, in the order in which they are searched.

    First come the recipes saved under `root`, then the folders in PEDIGREE_RECIPES (separated by ':'), then the shipped
    recipes.
    """
    named = os.environ.get(VARIABLE, "")
    if address := re.search(r"[\w+.-]+://.*", named):  # it would be divided at its colon
        local_path(address[0], VARIABLE)
    added = (Path(folder) for folder in named.split(os.pathsep) if folder)
    return RecipeFolders(kept=(root / "recipes",) if root else (), bases=(*added, SHIPPED))


def find_recipe(name_or_path: str, folders: Iterable[Path] | None = None) -> Path:
    """The file of a recipe given by name or path. Raises RecipeError, which lists the known names, if there is none."""
    return recipe_files(folders).find(name_or_path)


def load_recipe(name_or_path: str, folders: Iterable[Path] | None = None) -> Recipe:
    """Load a recipe by name or path. Raises RecipeError, with file, field and value, for a mistake."""
    return recipe_files(folders).load(name_or_path)


def recipe_files(folders: Iterable[Path] | None) -> RecipeFiles:
    """Return the recipe files of some folders, or of those without a root, which the checks of all assets judge."""
    named = recipe_folders() if folders is None else folders
    return RecipeFiles(named, CHAIN.values(), bases=named.bases if isinstance(named, RecipeFolders) else None)
