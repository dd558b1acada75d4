"""Checks of the names in a recipe: names of recipes, snapshots, rungs, exams and registered models."""

from __future__ import annotations

from training.contract.records import RecipeError

NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")


def check_name(name: str, what: str) -> None:
    """Raise RecipeError unless `name` is 1 to 64 characters of a-z 0-9 . _ - and does not start with a dot.

    Such a name is safe as a partition key and as a folder name. `what` names the field in the message.
    """
    if not 1 <= len(name) <= 64 or not set(name) <= NAME_CHARACTERS or name.startswith("."):
        raise RecipeError(
            f"{what}: {name!r} must be 1 to 64 characters of a-z, 0-9, '.', '_', '-', not starting with '.'"
        )


def check_model_name(name: str, what: str) -> None:
    """Raise RecipeError unless MLflow's registry accepts the model name, and its search needs no quotes around it."""
    if not 1 <= len(name) <= 128 or not name[0].isalnum() or not all(c.isalnum() or c in "._-" for c in name):
        raise RecipeError(
            f"{what}: {name[:140]!r} must be 1 to 128 letters, digits, '.', '_' and '-', and begin with one of the"
            " first two"
        )
