"""Commands about recipes: `init`, `show` and `list`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from assets.commands.options import DEFAULT_ROOT, JsonOption, RecipeArgument, RootOption, place, read
from training.recipe.recipe import recipe_as_data


def init(
    place: Annotated[
        str, typer.Argument(help="folder, file or URL of documents or chats, or a crawl's id such as CC-MAIN-2024-22")
    ],
    name: Annotated[str, typer.Option(help="name of the recipe; empty: taken from the folder, file or id")] = "",
    output: Annotated[Path | None, typer.Option(help="file to write; NAME.yaml if not given", callback=place)] = None,
    model: Annotated[Path | None, typer.Option(help="folder of a model to train further", callback=place)] = None,
    json_: JsonOption = False,
) -> None:
    """Look at documents and write a recipe of ten lines that trains a model on them."""
    from assets.answers.own_data import write_recipe
    from assets.answers.plan.given import told_of_tokens

    file = write_recipe(place, name, output, model)
    found = read(str(file), DEFAULT_ROOT)
    if json_:
        print(json.dumps({"recipe": found.name, "file": str(file)}, ensure_ascii=False))
        return
    print(file.read_text("utf-8"), end="")
    print("\n".join(filter(None, (told_of_tokens(found), f"wrote {file}"))), file=sys.stderr)


def show(recipe: RecipeArgument, root: RootOption = DEFAULT_ROOT, json_: JsonOption = False) -> None:
    """Print the resolved recipe, and about how many tokens its documents hold."""
    found = read(recipe, root)
    data = recipe_as_data(found)
    if json_:
        print(json.dumps(data, ensure_ascii=False))
        return
    import yaml

    from assets.answers.plan.given import told_of_tokens

    if told := told_of_tokens(found):
        print(told, file=sys.stderr)
    print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), end="")


def list_(
    what: Annotated[str, typer.Argument(help="recipes, profiles or assets")],
    root: RootOption = DEFAULT_ROOT,
    json_: JsonOption = False,
) -> None:
    """List the recipes or profiles that can be named, or the assets in the order in which they are made."""
    from assets.answers.status.lines import show_list
    from assets.answers.status.listing import listed

    rows = listed(what, root.resolve())
    if json_:
        print(json.dumps({what: rows}, ensure_ascii=False))
    else:
        show_list(rows)
