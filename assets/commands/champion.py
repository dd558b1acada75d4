"""Commands that change the registry: `register`, `promote` and `rollback`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assets.commands.options import DEFAULT_ROOT, JsonOption, ProfileOption, RecipeArgument, RootOption, read
from training.contract.process.exit_codes import FAILED
from training.contract.records import RecipeError

if TYPE_CHECKING:
    from resources.tracking.reports import Tracking


def register(
    step: Annotated[
        str, typer.Argument(help="RECIPE@step-N, a step that the recipe keeps, RECIPE@average or RECIPE@quantized")
    ],
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Register a kept step, or the quantized model, as a version of the recipe's model. It gets no alias."""
    from assets.answers.trace.kept_step import kept_step, recipe_and_step
    from assets.registry.by_hand import register_step

    if (made := kept_step(step, root.resolve())) is None:
        raise RecipeError(f"{step}: RECIPE@step-N is right; a recipe's last model is registered by `pedigree run`")
    recipe = read(recipe_and_step(step)[0], root)
    said = _said(lambda tracking: register_step(recipe, made, tracking), root, profile, json_)
    if said is not None:
        print(f"{said['model_name']}: version {said['version']} {'is' if said['moved'] else 'was already'} {step}")


def promote(
    recipe: RecipeArgument,
    reason: Annotated[str, typer.Option(help="the reason, which the registry keeps")],
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Make a recipe's model champion by hand, even if a gate refused it or it is an older version.

    A damaged model cannot be promoted.
    """
    from assets.registry.by_hand import promote_by_hand

    _by_hand(lambda tracking: promote_by_hand(read(recipe, root), tracking, reason), root, profile, json_)


def rollback(
    model: Annotated[str, typer.Argument(help="name of a registered model: `promote.model_name` of its recipes")],
    reason: Annotated[str, typer.Option(help="the reason, which the registry keeps")] = "",
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Make the previous champion the champion again."""
    from assets.registry.by_hand import roll_back

    _by_hand(lambda tracking: roll_back(model, tracking, reason), root, profile, json_)


def _by_hand(act: Callable[[Tracking], dict[str, Any]], root: Path, profile: str, json_: bool) -> None:
    said = _said(act, root, profile, json_)
    if said is None:
        return
    verb = "is champion now" if said["moved"] else "is champion already"
    print(f"{said['model_name']}: version {said['champion']} {verb}, `previous` is {said['previous'] or 'none'}")
    if not said.get("checked", True):
        print(f"its files are not under {root}, so nobody looked whether they are whole", file=sys.stderr)


def _said(act: Callable[[Tracking], dict[str, Any]], root: Path, profile: str, json_: bool) -> dict[str, Any] | None:
    """Return the answer of an action on the registry for a person; None if it was printed as JSON."""
    from resources.profile import load_profile
    from resources.tracking.errors import TrackingError
    from resources.tracking.reports import Tracking

    try:
        said = act(Tracking(load_profile(profile).tracker, root.resolve()))
    except TrackingError as error:
        print(f"error: {error}", file=sys.stderr)
        if json_:
            print(json.dumps({"ok": False, "error": str(error)}, ensure_ascii=False))
        raise typer.Exit(FAILED) from None
    if json_:
        print(json.dumps(said, ensure_ascii=False))
        return None
    return said
