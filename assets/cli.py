"""The command line `pedigree`. Scripts rely on it; the contract is in docs/command-line.md.

Exit codes: 0 success (a `run` to the end: the model is promoted); 2 bad input, and nothing was started; 3 a gate
refused an artifact, and its evidence is printed; 130 and 143 ended by Ctrl-C and SIGTERM; 1 any other failure.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assets.found import whole_model
from assets.interrupt import by_signal, exit_code_of, signals_noted
from assets.recipe_folders import load_recipe, recipe_folders
from assets.refusal import refusal_lines
from assets.run import BAD_INPUT, FAILED, OK, REFUSED, Report, keep_recipe, run_recipe
from assets.sentences import GO_ON, INTERRUPTED, check_root, make_writable, sentence_of
from assets.status import Comparison, compare, last_made
from training.artifact import Artifact
from training.job import DataError, RefusedInput
from training.recipe import Recipe, recipe_as_data
from training.recipes import reads_of_the_kitchen
from training.records import RecipeError, did_you_mean
from training.scopes import last_model
from training.secrets import masked_output

if TYPE_CHECKING:
    from resources.tracking.reports import Tracking

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="From raw crawl to an evaluated model, every weight traceable.",
)

RecipeArgument = Annotated[str, typer.Argument(help="name of a recipe, or path of a YAML file")]
RootOption = Annotated[
    Path,
    typer.Option(
        "--root", help="folder of the artifacts, the Dagster instance and the MLflow store", callback=check_root
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object last on standard output")]
ProfileOption = Annotated[str, typer.Option("--profile", help="name of a profile, or path of a YAML file")]
DEFAULT_ROOT = Path("runs")


def main() -> None:
    """Entry point. A mistake in the input gives one sentence and exit code 2 instead of a traceback."""
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from resources.profile import ProfileError

    code: str | int | None = OK
    with masked_output():
        try:
            app()
        except SystemExit as ended:
            uncaught = isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt)
            code = _say(INTERRUPTED, exit_code_of(signal.SIGINT)) if uncaught else ended.code
        except (RecipeError, DataError, RefusedInput, ProfileError) as error:
            code = _say(str(error), BAD_INPUT)
        except Exception as error:
            sentence = sentence_of(error)
            if not sentence:
                traceback.print_exc()
            code = _say(sentence or f"{type(error).__name__}: {error}", FAILED)
    sys.exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"pedigree {importlib.metadata.version('pedigree')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _say(sentence: str, code: int) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    if "--json" in sys.argv:
        print(json.dumps({"ok": False, "error": sentence}))
    return code


def read(recipe: str, root: Path) -> Recipe:
    """The recipe with this name or path. A recipe saved under the root takes precedence over one of the same name."""
    return load_recipe(recipe, recipe_folders(root.resolve()))


@app.command()
def run(
    recipe: RecipeArgument,
    profile: ProfileOption = "local",
    root: RootOption = DEFAULT_ROOT,
    snapshots: Annotated[
        str, typer.Option(help="snapshots, comma-separated: make only their assets and the inputs of these")
    ] = "",
    until: Annotated[str, typer.Option(help="stop after this asset")] = "",
    start_anew: Annotated[
        bool,
        typer.Option("--start-anew", help="begin trainings at step 0 and long work again that a run refuses to repeat"),
    ] = False,
    exact: Annotated[bool, typer.Option("--exact", help="make artifacts again that were made by other code")] = False,
    json_: JsonOption = False,
) -> None:
    """Make everything that a recipe asks for and that is not made yet, in order, through Dagster; show the result."""
    report = _run(recipe, profile, root, snapshots, until, starts_anew=start_anew, exact=exact)
    if not (json_ or snapshots or until or report.error):
        _show(recipe, root, report)
    _finish(report, json_)


def _run(
    name: str,
    profile: str,
    root: Path,
    snapshots: str = "",
    until: str = "",
    *,
    starts_anew: bool = False,
    exact: bool = False,
) -> Report:
    from assets.capacity import check_fit
    from assets.chain import CHAIN
    from assets.display import Display
    from resources.profile import ProfileError

    root = root.resolve()
    recipe = read(name, root)
    check_fit(recipe, profile)
    if warning := reads_of_the_kitchen(recipe):
        print(f"warning: {warning}", file=sys.stderr)
    if until and until not in CHAIN:
        raise RecipeError(f"--until {until!r}: no such asset;{did_you_mean(until, CHAIN)} there are {', '.join(CHAIN)}")
    chosen = tuple(part for part in snapshots.split(",") if part)
    for one in chosen:
        recipe.snapshot(one)
    make_writable(root)
    with signals_noted() as received:
        try:
            if name.endswith((".yaml", ".yml")):
                keep_recipe(recipe, root)
            with Display(recipe, root) as display:
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
                )
        except (RecipeError, DataError, ProfileError):
            raise
        except (Exception, KeyboardInterrupt) as error:
            sentence = sentence_of(error, root)
            if not sentence:
                raise
            report = Report(recipe=recipe.name, exit_code=FAILED, error=sentence)
        if report.exit_code != OK and (number := received()):
            report.error, report.exit_code = f"{by_signal(number)}; {GO_ON}", exit_code_of(number)
        return report


def _finish(report: Report, json_: bool) -> None:
    if report.error:
        print(f"error: {report.error}", file=sys.stderr)
    for refusal in report.refusals:
        print("\n".join(refusal_lines(refusal)), file=sys.stderr)
    if json_:
        print(json.dumps(report.as_json(), ensure_ascii=False))
    raise typer.Exit(report.exit_code)


@app.command()
def demo(
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    recipe: Annotated[str, typer.Argument()] = "kitchen",
) -> None:
    """Run the embedded recipe from its crawl to a promoted model and show the scoreboard."""
    report = _run(recipe, profile, root)
    _show(recipe, root, report)
    _finish(report, json_=False)


def _show(recipe: str, root: Path, report: Report) -> None:
    from assets.terminal import show_scoreboard

    show_scoreboard(compare(read(recipe, root), root.resolve()), report)


@app.command()
def init(
    place: Annotated[
        str, typer.Argument(help="folder, file or URL of documents, or a crawl's id such as CC-MAIN-2024-22")
    ],
    name: Annotated[str, typer.Option(help="name of the recipe; empty: taken from the folder, file or id")] = "",
    output: Annotated[Path | None, typer.Option(help="file to write; NAME.yaml if not given")] = None,
    json_: JsonOption = False,
) -> None:
    """Look at documents and write a recipe of ten lines that trains a model on them."""
    from assets.own_data import write_recipe

    file = write_recipe(place, name, output)
    found = read(str(file), DEFAULT_ROOT)
    if json_:
        print(json.dumps({"recipe": found.name, "file": str(file)}, ensure_ascii=False))
        return
    print(file.read_text("utf-8"), end="")
    print(f"wrote {file}", file=sys.stderr)


@app.command()
def show(recipe: RecipeArgument, root: RootOption = DEFAULT_ROOT, json_: JsonOption = False) -> None:
    """Print the resolved recipe."""
    data = recipe_as_data(read(recipe, root))
    if json_:
        print(json.dumps(data, ensure_ascii=False))
        return
    import yaml

    print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), end="")


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="recipes, profiles or assets")],
    root: RootOption = DEFAULT_ROOT,
    json_: JsonOption = False,
) -> None:
    """List the recipes or profiles that can be named, or the assets in the order in which they are made."""
    from assets.listing import listed
    from assets.terminal import show_list

    rows = listed(what, root.resolve())
    if json_:
        print(json.dumps({what: rows}, ensure_ascii=False))
    else:
        show_list(rows)


@app.command()
def status(
    recipe: RecipeArgument,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    all_: Annotated[
        bool, typer.Option("--all", help="show every cell with all its reasons, without shortening")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Show what is made, missing or outdated, and which field of the recipe makes it outdated."""
    from assets.promotion.champion import with_stale_noted
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    comparison = compare(read(recipe, root), root.resolve(), skip_unavailable=True)
    comparison = with_stale_noted(comparison, Tracking(load_profile(profile).tracking_uri, root.resolve()))
    if json_:
        print(
            json.dumps(
                {"recipe": comparison.recipe.name, "assets": _status_data(comparison.cells.values())},
                ensure_ascii=False,
            )
        )
        return
    from assets.terminal import show_cells, show_status

    if all_:
        show_cells(comparison)
    else:
        show_status(comparison, recipe)


def _status_data(cells: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for cell in cells:
        result.setdefault(cell.asset, {})[cell.partition] = {
            "state": cell.state,
            "fingerprint": cell.fingerprint,
            "recorded": cell.is_recorded,
            "reasons": list(cell.reasons),
            "way_out": cell.way_out,
            "remark": cell.remark,
            "other_code": list(cell.other_code),
            "refused_by": [gate["name"] for gate in cell.artifact.failed_gates] if cell.artifact else [],
            "numerics": cell.artifact.record.get("numerics") if cell.artifact else None,
            "reused_ranks": cell.artifact.record.get("reused_ranks") if cell.artifact else None,
        }
    return result


@app.command()
def why(
    asset: Annotated[str, typer.Argument(help="name of an asset")],
    recipe: RecipeArgument,
    other: Annotated[str, typer.Argument(help="another recipe to compare with; empty: the recorded artifact")] = "",
    root: RootOption = DEFAULT_ROOT,
    json_: JsonOption = False,
) -> None:
    """Show field by field why an asset is outdated, or how the artifacts of two recipes differ."""
    from assets.why import explain

    answer = explain(asset, read(recipe, root), read(other, root) if other else None, root.resolve())
    if json_:
        print(json.dumps(answer, ensure_ascii=False))
        return
    for entry in answer["partitions"]:
        print(f"{answer['asset']} [{entry['partition']}]: {entry['state']}")
        for line in (*entry["differences"], *entry.get("numerics", ()), *filter(None, [entry.get("reused_ranks")])):
            print(f"  {line}")


@app.command()
def verify(
    recipe: RecipeArgument,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    mend: Annotated[
        bool, typer.Option("--mend", help="set aside artifacts with a damaged file or a changed record")
    ] = False,
    protect: Annotated[
        bool, typer.Option("--protect", help="save record digests of artifacts by an earlier edition in references")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Check that a recipe's artifacts, the references to them and its own sources are as they were written.

    Every file and record is read. Exit code 1 if one differs, 2 if nothing is made.
    """
    from assets.verify import verified
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking
    from training.data.known import forget

    forget(root.resolve())  # so that the recipe's own sources are read too
    comparison = compare(read(recipe, root), root.resolve(), skip_unavailable=True)
    tracking = Tracking(load_profile(profile).tracking_uri, root.resolve())
    answer = verified(comparison, tracking, mend=mend, protect=protect)
    if not answer.verified and not answer.problems:
        raise DataError(
            f"nothing to verify: recipe {comparison.recipe.name} has made nothing under {root} as it is now;"
            f" `pedigree status {recipe}` says what is missing"
        )
    if json_:
        print(json.dumps(answer.as_json(), ensure_ascii=False))
    else:
        for line in answer.lines():
            print(line, file=sys.stderr)
        print(f"{answer.verified} artifacts read, {len(answer.problems)} problems")
    raise typer.Exit(FAILED if answer.problems else OK)


@app.command()
def report(
    recipe: RecipeArgument,
    root: RootOption = DEFAULT_ROOT,
    output: Annotated[Path, typer.Option(help="file to write")] = Path("report.html"),
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Write one self-contained HTML page about all artifacts that the recipe has made so far, refused ones included."""
    from assets.promotion.page import report_page

    comparison = compare(read(recipe, root), root.resolve(), skip_unavailable=True)
    if all(cell.artifact is None for cell in comparison.cells.values()):
        raise DataError(f"recipe {comparison.recipe.name} has made nothing under {root}; run it first")
    output.write_text(report_page(comparison, _registered(comparison, root.resolve(), profile)), "utf-8")
    print(json.dumps({"report": str(output)}) if json_ else f"wrote {output}")


def _registered(comparison: Comparison, root: Path, profile: str) -> dict[str, Any]:
    """The standing of the recipe's model in the registry, and the history of its champions.

    Empty if the aligned model is not made, or if the registry does not answer; then a warning is printed.
    """
    from assets.lineage import model_of
    from assets.promotion.page import told
    from assets.promotion.standing import standing
    from resources.profile import load_profile
    from resources.tracking.errors import TrackingError
    from resources.tracking.registry import Registry, explained
    from resources.tracking.reports import Tracking

    if model_of(comparison).artifact is None:
        return {}
    tracking = Tracking(load_profile(profile).tracking_uri, root)
    try:
        with explained(tracking):
            registry = Registry(tracking, comparison.recipe.promote.model_name)
            return told(standing(comparison, registry), registry)
    except TrackingError as error:
        print(f"{error}; the report says nothing of promotions", file=sys.stderr)
        return {}


@app.command()
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
    from assets.promotion.by_hand import promote_by_hand

    _by_hand(lambda tracking: promote_by_hand(read(recipe, root), tracking, reason), root, profile, json_)


@app.command()
def rollback(
    model: Annotated[str, typer.Argument(help="name of a registered model: `promote.model_name` of its recipes")],
    reason: Annotated[str, typer.Option(help="the reason, which the registry keeps")] = "",
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Make the previous champion the champion again."""
    from assets.promotion.by_hand import roll_back

    _by_hand(lambda tracking: roll_back(model, tracking, reason), root, profile, json_)


def _by_hand(act: Callable[[Tracking], dict[str, Any]], root: Path, profile: str, json_: bool) -> None:
    from resources.profile import load_profile
    from resources.tracking.errors import TrackingError
    from resources.tracking.reports import Tracking

    try:
        said = act(Tracking(load_profile(profile).tracking_uri, root.resolve()))
    except TrackingError as error:
        print(f"error: {error}", file=sys.stderr)
        if json_:
            print(json.dumps({"ok": False, "error": str(error)}, ensure_ascii=False))
        raise typer.Exit(FAILED) from None
    if json_:
        print(json.dumps(said, ensure_ascii=False))
        return
    verb = "is champion now" if said["moved"] else "is champion already"
    print(f"{said['model_name']}: version {said['champion']} {verb}, `previous` is {said['previous'] or 'none'}")
    if not said.get("checked", True):
        print(f"its files are not under {root}, so nobody looked whether they are whole", file=sys.stderr)


@app.command()
def inspect(
    asset: Annotated[str, typer.Argument(help="a stage that sorts records, such as filtered_documents")],
    recipe: RecipeArgument,
    snapshot: Annotated[str, typer.Option(help="only this snapshot")] = "",
    reason: Annotated[
        str,
        typer.Option(help="kept, dropped, quarantined, redacted, cluster, just_passed, cut, or how a reason begins"),
    ] = "",
    samples: Annotated[int, typer.Option(help="records shown of each group", min=0)] = 3,
    characters: Annotated[int, typer.Option(help="characters shown of each text", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="seed of the random choice of records")] = 0,
    root: RootOption = DEFAULT_ROOT,
    json_: JsonOption = False,
) -> None:
    """Show records that a stage kept, dropped, quarantined or redacted, by reason.

    Also shows clusters of near-duplicates, documents that just passed, and cuts.
    """
    from assets.terminal import show_samples
    from evaluation.closer import look_at
    from evaluation.samples import has_records

    comparison = compare(read(recipe, root), root.resolve(), skip_unavailable=True)
    cells = comparison.cells.values()
    made = [(found.path, found.record) for cell in cells if (found := last_made(cell, root.resolve()))]
    if any(cell.asset == asset and cell.state == "outdated" for cell in cells):
        print(f"{asset} is outdated (`pedigree status {recipe}` says why); shown is what was made", file=sys.stderr)
    groups = look_at(made, asset, partition=snapshot, reason=reason, number=samples, characters=characters, seed=seed)
    if not groups:
        known = ", ".join(dict.fromkeys(record["asset"] for _, record in made if has_records(record))) or "none"
        raise DataError(
            f"{asset} of {comparison.recipe.name} has no records for snapshot {snapshot or 'any'} and reason"
            f" {reason or 'any'}; made under {root} and with records: {known}"
        )
    if json_:
        print(json.dumps({"asset": asset, "groups": [group.as_json() for group in groups]}, ensure_ascii=False))
    else:
        show_samples(groups)


@app.command()
def trace(
    model: Annotated[str, typer.Argument(help="a recipe, NAME@ALIAS or NAME/3 of the registry, or ASSET/FINGERPRINT")],
    step: Annotated[int | None, typer.Option(help="show the documents of this training step")] = None,
    url: Annotated[str, typer.Option(help="show what became of the pages with this URL")] = "",
    domain: Annotated[str, typer.Option(help="show what became of all pages of this domain")] = "",
    document: Annotated[str, typer.Option(help="show what became of the page with this id")] = "",
    lineage: Annotated[
        bool, typer.Option("--lineage", help="show what the model was made from, and what was made from it")
    ] = False,
    training: Annotated[str, typer.Option(help="with --step: a training other than base_model")] = "",
    text: Annotated[
        str, typer.Option(help="find the parts of this text that occur word for word in the training data")
    ] = "",
    least: Annotated[int, typer.Option(help="with --text: the fewest tokens of a part", min=1)] = 8,
    html: Annotated[Path | None, typer.Option(help="with --text: write an HTML page that shows the parts")] = None,
    texts: Annotated[bool, typer.Option("--texts", help="with --step: also print the text of the tokens")] = False,
    shown: Annotated[
        int | None,
        typer.Option(help="hosts and pages to list; default 10 with --domain, 3 for each part with --text", min=0),
    ] = None,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Trace a model, a training step, a text, a page or a domain through the training data.

    Says which pages a step was trained on, what became of a page or domain and which models saw it, which parts of a
    text occur in the training data, or what a model was made from. Exit code 2 if there is no such model, step, page or
    domain.
    """
    from assets.trace import answer
    from assets.trace_lines import lines_of
    from assets.trace_page import page_of
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    questions = {"step": step, "url": url, "domain": domain, "document": document, "text": text, "lineage": lineage}
    asked = {name: value for name, value in questions.items() if value is not None and value not in ("", False)}
    if len(asked) != 1:
        raise DataError(
            f"trace: give one of --step, --url, --domain, --document, --text and --lineage, not {len(asked)}"
        )
    root = root.resolve()
    tracking = Tracking(load_profile(profile).tracking_uri, root)
    if html is not None and not text:
        raise DataError("trace: --html shows the answer to --text; give a text")
    shown = shown if shown is not None else 3 if text else 10
    told = answer(model, asked, root=root, tracking=tracking, training=training, texts=texts, shown=shown, least=least)
    if html is not None:
        html.write_text(page_of(told), "utf-8")
    print(json.dumps(told, ensure_ascii=False) if json_ else "\n".join(lines_of(told)))


@app.command()
def takedown(
    reason: Annotated[
        str, typer.Option(help="why; it stays in the tombstone and is counted with the dropped pages")
    ] = "",
    url: Annotated[str, typer.Option(help="the page of this address, in any spelling")] = "",
    domain: Annotated[str, typer.Option(help="all pages of this domain and of the hosts below it")] = "",
    document: Annotated[str, typer.Option(help="the page with this id")] = "",
    list_: Annotated[
        Path | None, typer.Option("--list", help="a file of these, one a line; a reason may follow after a tab")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what holds them, and what it costs")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="withdraw without asking")] = False,
    no_rebuild: Annotated[bool, typer.Option("--no-rebuild", help="leave the rebuild to the next run")] = False,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Say what holds pages and what a rebuild costs; withdraw them for good, and build the corpus without them."""
    from assets.takedown import NOT_DONE, answer, asked_of, rebuilt_assets, withdraw
    from assets.takedown_lines import lines_of
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    root = root.resolve()
    asked = asked_of(url=url, domain=domain, document=document, file=list_, reason=reason)
    compute = load_profile(profile)
    how: dict[str, Any] = {"tracking": Tracking(compute.tracking_uri, root), "profile": compute}
    if dry_run:
        told = answer(root, asked, **how)
        print(json.dumps(told, ensure_ascii=False) if json_ else "\n".join(lines_of(told)))
        return
    if not yes and (json_ or not sys.stdin.isatty()):
        raise DataError(
            "takedown: nobody can be asked here; --dry-run shows what would be withdrawn, --yes withdraws it"
        )

    def confirm(told: dict[str, Any]) -> bool:
        if not json_:
            print("\n".join(lines_of(told)))
        return yes or typer.confirm("Withdraw these pages for good?")

    told = withdraw(root, asked, **how, confirm=confirm)
    rebuilt: dict[str, list[str]] = {}
    code, problem = OK, ""
    for name in told["rebuild"]["recipes"] if told["done"] and not no_rebuild else ():
        for asset in rebuilt_assets(root, name) if code == OK else ():
            report = _run(name, profile, root, until=asset)
            code, problem = report.exit_code, report.error
            rebuilt.setdefault(name, []).append(asset)
    ended = {"rebuilt": rebuilt, "not_done": NOT_DONE, "error": problem}
    if json_:
        print(json.dumps({**told, **ended}, ensure_ascii=False))
    else:
        _say_withdrawn(told, rebuilt)
    if code != OK:
        print(
            f"error: the tombstone is in force, the rebuild failed: {problem}; give the command again", file=sys.stderr
        )
    raise typer.Exit(code)


def _say_withdrawn(told: dict[str, Any], rebuilt: dict[str, list[str]]) -> None:
    from assets.takedown import NOT_DONE

    print(f"\n{told['done'] or 'nothing was withdrawn'}")
    if told["done"]:
        print(f"tagged `upstream_withdrawn`: {', '.join(told['tagged']) or 'no version, because none saw the pages'}")
        for name in told["rebuild"]["recipes"]:
            print(f"corpus of {name}: {', '.join(rebuilt.get(name, ())) or 'not rebuilt; the next run does it'}")
        print(NOT_DONE)


@app.command()
def chat(
    recipe: RecipeArgument = "kitchen",
    root: RootOption = DEFAULT_ROOT,
    asset: Annotated[str, typer.Option(help="a model with a chat template; empty: the last model")] = "",
    prompt: Annotated[str, typer.Option(help="ask once instead of in a loop")] = "",
    traced: Annotated[
        bool, typer.Option("--trace", help="print after each answer which parts of it occur in the training data")
    ] = False,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Talk to a recipe's model, the last of its chain if none is named."""
    made = _made(recipe, root, asset)
    arguments = [sys.executable, "-m", "training.posttrain.chat", str(whole_model(made.path / "model"))]
    arguments += ["--prompt", prompt] if prompt else []
    if traced:
        from assets.trace import traced_answers
        from resources.profile import load_profile
        from resources.tracking.reports import Tracking

        tracking = Tracking(load_profile(profile).tracking_uri, root.resolve())
        model = f"{made.record['asset']}/{made.fingerprint}"
        raise typer.Exit(traced_answers(arguments, model, root=root.resolve(), tracking=tracking, json_=json_))
    raise typer.Exit(subprocess.run([*arguments, *(["--json"] if json_ else [])], check=False).returncode)


def _made(recipe: str, root: Path, asset: str) -> Artifact:
    comparison = compare(read(recipe, root), root.resolve())
    asset = asset or last_model(comparison.recipe)
    cell = comparison.cells.get((asset, comparison.recipe.name))
    if cell is None or cell.artifact is None:
        raise DataError(
            f"{asset} of recipe {comparison.recipe.name} is not made under {root}; `pedigree run {recipe}` makes it"
        )
    return cell.artifact


@app.command()
def export(
    recipe: RecipeArgument,
    folder: Annotated[Path, typer.Argument(help="empty or new folder")],
    asset: Annotated[str, typer.Option(help="a model or decontaminated_documents; empty: the last model")] = "",
    root: RootOption = DEFAULT_ROOT,
    json_: JsonOption = False,
) -> None:
    """Lay out a model or the corpus for upload to a model hub, with card, origin and licences."""
    from assets.export import export

    names = export(compare(read(recipe, root), root.resolve()), asset, folder)
    print(json.dumps({"folder": str(folder), "files": names}) if json_ else "\n".join(names))


SuitesHelp = "a recipe, or a YAML file with the section `evaluation` of one"


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="folder of a transformers model, models:/NAME@ALIAS or models:/NAME/3")],
    suites: Annotated[str, typer.Option(help=SuitesHelp)],
    output: Annotated[Path | None, typer.Option(help="folder for scores and every answer")] = None,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Score any model on any benchmarks, in the same way as the models of the chain."""
    from assets.outside import evaluate, model_folder, score_lines, suites_of
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    exams = suites_of(suites, root.resolve())
    folder = model_folder(model, Tracking(load_profile(profile).tracking_uri, root.resolve()))
    scores = evaluate(folder, exams, output)
    print(json.dumps({"model": str(folder), "scores": scores}) if json_ else "\n".join(score_lines(scores)))


@app.command()
def contamination(
    data: Annotated[list[str], typer.Argument(help="files, folders or patterns: .jsonl, .parquet, .txt, WARC, WET")],
    against: Annotated[str, typer.Option(help=SuitesHelp)],
    output: Annotated[Path | None, typer.Option(help="folder for contamination.json and findings.jsonl")] = None,
    root: RootOption = DEFAULT_ROOT,
    json_: JsonOption = False,
) -> None:
    """Look for items of exams in any data, by the chain's own rule. Exit code 3 if the verdict is contaminated."""
    from assets.outside import suites_of, verdict_lines
    from evaluation.scan import contamination, files_of

    recipe, settings = suites_of(against, root.resolve())
    report, findings, gate = contamination(files_of(data), recipe, settings, output)
    if json_:
        print(json.dumps({"report": report, "findings": findings, "gate": gate}, ensure_ascii=False))
    else:
        print("\n".join(verdict_lines(report, gate)))
    raise typer.Exit(OK if gate["passed"] else REFUSED)


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="a folder, models:/NAME@ALIAS, or a recipe, whose last model is served")],
    port: Annotated[int, typer.Option(help="port on this machine", min=1, max=65535)] = 8000,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
) -> None:
    """Serve a model with OpenAI's interface, for programs on this machine, until interrupted."""
    from assets.serve import model_of, serve
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    root = root.resolve()
    folder, name = model_of(model, root, Tracking(load_profile(profile).tracking_uri, root))
    raise typer.Exit(serve(folder, name, port))


@app.command("compare")
def compare_(
    models: Annotated[list[str], typer.Argument(help="recipes, NAME@ALIAS or NAME/3 of the registry, or artifacts")],
    html: Annotated[Path | None, typer.Option(help="write a page with plots")] = None,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Compare models with the first one: recipes, artifacts, scores on the same items, seeds, compute and losses."""
    from assets.sides import sides_of
    from evaluation.compare import compared
    from evaluation.compare_page import lines_of, page_of
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    root = root.resolve()
    told = compared(sides_of(models, root, Tracking(load_profile(profile).tracking_uri, root)))
    if html is not None:
        html.write_text(page_of(told), "utf-8")
    print(json.dumps(told, ensure_ascii=False) if json_ else "\n".join(lines_of(told)))


@app.command()
def gc(
    yes: Annotated[bool, typer.Option("--yes", help="remove what is listed")] = False,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """List what no reference, recipe, registered version or running job needs, with sizes; --yes removes it."""
    from assets.trace_lines import folded
    from assets.trash import collect
    from assets.unreached import Look, lines_of
    from resources.profile import load_profile

    root = root.resolve()
    if not root.is_dir():
        raise DataError(f"{root}: there is no such folder, so nothing can be removed")
    told = collect(Look(root, load_profile(profile)), removes=yes)
    print(json.dumps(told, ensure_ascii=False) if json_ else "\n".join(lines_of(told, folded)))


@app.command()
def dev(
    root: RootOption = DEFAULT_ROOT, profile: ProfileOption = "local", port: int = 3000, mlflow_port: int = 5000
) -> None:
    """Start the Dagster UI, the Dagster daemon and MLflow on loopback, over the stores of one root."""
    from assets.dev import serve

    raise typer.Exit(serve(root.resolve(), profile, port, mlflow_port))


def _not_yet(name: str, what: str) -> None:
    def refuse(arguments: Annotated[list[str] | None, typer.Argument()] = None, json_: JsonOption = False) -> None:
        del arguments
        sentence = f"{name} is not built yet: it will {what}."
        print(sentence, file=sys.stderr)
        if json_:
            print(json.dumps({"ok": False, "error": sentence}))
        raise typer.Exit(FAILED)

    refuse.__doc__ = f"Not built yet; will {what}."
    app.command(name, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(refuse)


_not_yet("plan", "price a run before it starts")
_not_yet("doctor", "check this machine and root for what commonly goes wrong")
