"""The model that a recipe kept after a step, by its name, such as `kitchen@step-500`."""

from __future__ import annotations

import re
from pathlib import Path

from assets.state.chain import CHAIN, partition_key, parts_of
from assets.state.compare import compare
from assets.state.recipe_folders import find_recipe, load_recipe, recipe_folders
from training.contract.artifact import Artifact
from training.contract.job import DataError
from training.contract.records import RecipeError, no_such
from training.contract.scopes import KEPT_STEPS

NAME = re.compile(r"(?!models:)(?P<recipe>[^@]+)@(?P<part>step-\d+)")


def recipe_and_step(name: str) -> tuple[str, str]:
    """Return the recipe and the part of a name such as `kitchen@step-500`; the name and "" if it names no step."""
    found = NAME.fullmatch(name)
    return (name, "") if found is None else (found["recipe"], found["part"])


def kept_step(name: str, root: Path) -> Artifact | None:
    """Return the model of a name such as `kitchen@step-500`; None if it names no step of a recipe.

    Raise DataError if the recipe does not keep the step, or if it is not made.
    """
    (named, part), folders = recipe_and_step(name), recipe_folders(root)
    if not part:
        return None
    try:
        find_recipe(named, folders)
    except RecipeError:
        return None  # it may be an alias in the registry
    recipe = load_recipe(named, folders)
    if part not in (kept := parts_of(CHAIN[KEPT_STEPS], recipe)):
        raise DataError(no_such(f"{named} keeps no {part} (pretrain.keep)", part, kept))
    return compare(recipe, root, skip_unavailable=True).made(KEPT_STEPS, partition_key(recipe, part), named=named)
