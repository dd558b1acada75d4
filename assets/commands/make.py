"""Commands that make what a recipe asks for: `run` and `demo`."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assets.commands.options import (
    DEFAULT_ROOT,
    JsonOption,
    ProfileOption,
    RecipeArgument,
    RootOption,
    names_of_assets,
    read,
)
from assets.registry.decision import DECISION
from assets.registry.refusal import refusal_lines
from assets.services.root import make_writable
from assets.services.signals import signals_noted
from assets.state.compare import compare
from assets.terminal.errors import sentence_of
from assets.terminal.standard_error import say
from resources.profile import Profile, ProfileError
from training.contract.job import DataError
from training.contract.process.exit_codes import BAD_INPUT, FAILED, OK
from training.contract.records import RecipeError, no_such
from training.recipe.exam_presets import told_left_out
from training.recipe.recipes import reads_of_the_kitchen

if TYPE_CHECKING:
    from assets.run.result import Report


def run(
    recipe: RecipeArgument,
    profile: ProfileOption = "local",
    root: RootOption = DEFAULT_ROOT,
    snapshots: Annotated[
        str, typer.Option(help="snapshots, comma-separated: make only their assets and the inputs of these")
    ] = "",
    until: Annotated[str, typer.Option(help="stop after this asset", autocompletion=names_of_assets)] = "",
    start_anew: Annotated[
        bool,
        typer.Option("--start-anew", help="begin trainings at step 0 and long work again that a run refuses to repeat"),
    ] = False,
    exact: Annotated[bool, typer.Option("--exact", help="make artifacts again that were made by other code")] = False,
    json_: JsonOption = False,
) -> None:
    """Make everything that a recipe asks for and that is not made yet, in order, through Dagster; show the result."""
    report = run_named(recipe, profile, root, snapshots, until, starts_anew=start_anew, exact=exact)
    if not (json_ or snapshots or until or report.error):
        _show(recipe, root, report)
    _finish(report, json_)


def run_named(
    name: str,
    profile: str,
    root: Path,
    snapshots: str = "",
    until: str = "",
    *,
    starts_anew: bool = False,
    exact: bool = False,
) -> Report:
    from assets.answers.plan.capacity import check_fit
    from assets.answers.plan.given import told_of_tokens
    from assets.run.result import Report
    from assets.run.run import keep_recipe, run_recipe
    from assets.state.chain import CHAIN
    from assets.terminal.display import Display
    from resources.profile import load_profile

    root = root.resolve()
    recipe = read(name, root)
    check_fit(recipe, profile)
    left_out = told_left_out(recipe.evaluation.preset)
    for warning in filter(None, (reads_of_the_kitchen(recipe), told_of_tokens(recipe, only_problem=True), left_out)):
        print(f"warning: {warning}", file=sys.stderr)
    if until and until not in CHAIN:
        raise RecipeError(no_such(f"--until {until!r}: no such asset", until, CHAIN))
    chosen = tuple(part for part in snapshots.split(",") if part)
    for one in chosen:
        recipe.snapshot(one)
    make_writable(root)
    loaded = load_profile(profile)
    with signals_noted() as received:
        try:
            if name.endswith((".yaml", ".yml")):
                keep_recipe(recipe, root, given=Path(name))
            with Display(recipe, root, profile=loaded) as display:
                report = run_recipe(
                    recipe,
                    root,
                    profile=profile,
                    until=until or None,
                    snapshots=chosen,
                    announce=display.announce,
                    starts_anew=starts_anew,
                    exact=exact,
                    say=display.say,
                    signal_received=received,
                )
        except (Exception, KeyboardInterrupt) as error:
            is_input = isinstance(error, (RecipeError, DataError, ProfileError))
            sentence = str(error) if is_input else sentence_of(error, root)
            if not sentence:
                traceback.print_exc()
                sentence = f"{type(error).__name__}: {error}"
            code = BAD_INPUT if is_input else FAILED
            report = Report(recipe=recipe.name, exit_code=code, error=sentence).ended_by(received())
    _tell(loaded, report, until)
    return report


def _tell(profile: Profile, report: Report, until: str) -> None:
    """Post to the profile's webhook what it has not heard yet of a run that is not ok and that nobody cancelled."""
    if report.exit_code == OK or report.is_cancelled or profile.notify.address is None:
        return
    from assets.graph.notices import tell  # imports Dagster

    for notice in report.untold(until or DECISION):
        tell(profile.notify, notice)


def _finish(report: Report, json_: bool) -> None:
    if report.exit_code == OK:
        say([report.sentence], "green")
    if report.error:
        say([f"error: {line}" if not number else line for number, line in enumerate(report.error.split("\n"))], "red")
    for refusal in report.refusals:
        say(refusal_lines(refusal), "bold red")
    if json_:
        print(json.dumps(report.as_json(), ensure_ascii=False))
    raise typer.Exit(report.exit_code)


def demo(
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    recipe: Annotated[str, typer.Argument()] = "kitchen",
) -> None:
    """Run the embedded recipe from its crawl to a promoted model and show the result."""
    report = run_named(recipe, profile, root)
    _show(recipe, root, report)
    _finish(report, json_=False)


def _show(recipe: str, root: Path, report: Report) -> None:
    from assets.answers.status.lines import show_scoreboard

    show_scoreboard(compare(read(recipe, root), root.resolve()), report)
