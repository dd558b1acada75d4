"""The content of `pedigree list`: the recipes and profiles that can be named, or the assets."""

from __future__ import annotations

from pathlib import Path

from assets.state.chain import CHAIN
from assets.state.recipe_folders import recipe_files, recipe_folders
from resources.profile import SHIPPED, load_profile
from training.contract.job import DataError
from training.contract.records import RecipeError, no_such


def listed(what: str, root: Path) -> list[dict[str, str]]:
    """Return a `name`, a `description` and, for files, the `file` of each recipe, profile or asset.

    A recipe that cannot be read is listed with its error. Raises DataError for any other `what`.
    """
    kinds = {"recipes": _recipes, "profiles": _profiles, "assets": _assets}
    if what not in kinds:
        raise DataError(no_such(f"list {what!r}: no such list", what, kinds))
    return kinds[what](root)


def _recipes(root: Path) -> list[dict[str, str]]:
    files = recipe_files(recipe_folders(root))
    first = {path.stem: path for path in reversed(files.paths())}  # if two folders hold the same name, the first wins
    rows = []
    for name, path in sorted(first.items()):
        try:
            description = files.load(str(path)).description
        except RecipeError as error:
            description = f"cannot be read: {error.problems[0]}"
        rows.append({"name": name, "description": description, "file": str(path)})
    return rows


def _profiles(root: Path) -> list[dict[str, str]]:
    del root
    return [
        {"name": path.stem, "description": load_profile(str(path)).description, "file": str(path)}
        for path in sorted(SHIPPED.glob("*.yaml"))
    ]


def _assets(root: Path) -> list[dict[str, str]]:
    del root
    return [{"name": one.name, "description": one.description, "group": one.group} for one in CHAIN.values()]
