"""Arguments and options that several commands share, and how a command reads a recipe."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from assets.services.root import check_root
from assets.state.chain import CHAIN
from assets.state.recipe_folders import load_recipe, recipe_folders
from training.contract.records import RecipeError, no_such
from training.contract.user_input.places import local_path
from training.recipe.recipe import Recipe


def names_of_recipes(incomplete: str) -> list[str]:
    """Return the recipes whose names begin so, for a shell; files are completed by the shell itself."""
    return _names_in(recipe_folders(DEFAULT_ROOT.resolve()), incomplete)


def names_of_profiles(incomplete: str) -> list[str]:
    """Return the shipped profiles whose names begin so, for a shell."""
    from resources.profile import SHIPPED

    return _names_in([SHIPPED], incomplete)


def names_of_assets(incomplete: str) -> list[str]:
    """Return the assets whose names begin with `incomplete`, in the order of the chain, for shell completion."""
    return [name for name in CHAIN if name.startswith(incomplete)]


def _names_in(folders: Iterable[Path], incomplete: str) -> list[str]:
    return sorted(
        {file.stem for folder in folders for file in folder.glob("*.yaml") if file.stem.startswith(incomplete)}
    )


DEFAULT_ROOT = Path("runs")
RecipeArgument = Annotated[
    str, typer.Argument(help="name of a recipe, or path of a YAML file", autocompletion=names_of_recipes)
]


def place(param: typer.CallbackParam, given: Path | None) -> Path | None:
    """Return the path in an argument or option; the callback of all that name a file or folder."""
    return given and local_path(given, param.opts[-1] if param.opts[-1].startswith("-") else (param.name or "").upper())


RootOption = Annotated[
    Path,
    typer.Option(
        "--root", help="folder of the artifacts, the Dagster instance and the MLflow store", callback=check_root
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object last on standard output")]
ProfileOption = Annotated[
    str,
    typer.Option("--profile", help="name of a profile, or path of a YAML file", autocompletion=names_of_profiles),
]


def check_asset(name: str) -> None:
    """Raise RecipeError, with the asset that may have been meant, if no asset has that name."""
    if name not in CHAIN:
        raise RecipeError(no_such(f"no asset is called {name!r}", name, CHAIN))


def read(recipe: str, root: Path) -> Recipe:
    """Return the recipe with this name or path.

    A recipe saved in the artifact root takes precedence over a shipped one of the same name.
    """
    return load_recipe(recipe, recipe_folders(root.resolve()))
