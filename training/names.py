"""Names that a recipe gives: of recipes, snapshots, rungs and exams, and of registered models."""

from __future__ import annotations

from training.records import RecipeError

NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")


def check_name(name: str, what: str) -> None:
    """RecipeError unless `name` is 1 to 64 of a-z 0-9 . _ - : it becomes a partition key and a folder name."""
    if not 1 <= len(name) <= 64 or not set(name) <= NAME_CHARACTERS or name.startswith("."):
        raise RecipeError(
            f"{what}: {name!r} must be 1 to 64 characters of a-z, 0-9, '.', '_', '-', not starting with '.'"
        )


def check_model_name(name: str, what: str) -> None:
    """RecipeError unless the registry takes the name and it needs no quotes in the registry's questions."""
    if not 1 <= len(name) <= 128 or not name[0].isalnum() or not all(c.isalnum() or c in "._-" for c in name):
        raise RecipeError(
            f"{what}: {name[:140]!r} must be 1 to 128 letters, digits, '.', '_' and '-', and begin with one of the"
            " first two"
        )
