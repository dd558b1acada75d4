"""Held-out text that later assets need: whether the recipe asks for it, and whether the plans have any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from training.contract.job import DataError
from training.contract.records import RecipeError
from training.contract.stage import Check, InputCheck

if TYPE_CHECKING:
    from training.contract.artifact import Artifact
    from training.recipe.recipe import Recipe


def held_out_asked(needed_by: str) -> Check:
    """Return the check that a recipe holds out a share of the documents, which the section `needed_by` needs."""
    return partial(_check_asked, needed_by)


def held_out_there(plan: str, needed_by: str) -> InputCheck:
    """Return the check that each artifact of asset `plan` has held-out text, which section `needed_by` needs."""
    return InputCheck(assets=(plan,), check=partial(_check_there, plan, needed_by))


def _check_asked(needed_by: str, recipe: Recipe) -> None:
    if not recipe.mixture.held_out_fraction:
        raise RecipeError(f"mixture.held_out_fraction: 0; {needed_by} needs held-out text, so set it above 0")


def _check_there(plan: str, needed_by: str, recipe: Recipe, made: Mapping[str, Sequence[Artifact]]) -> None:
    for one in made[plan]:
        if not one.record["metrics"]["held_out_tokens"]:
            raise DataError(
                f"{needed_by}: no held-out text; mixture.held_out_fraction={recipe.mixture.held_out_fraction:g} of"
                f" {one.record['counts']['in']:,} documents held out none, so make it larger or add documents"
            )
