"""Commands that follow pages into models: `trace` and `takedown`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from assets.commands.make import run_named
from assets.commands.options import DEFAULT_ROOT, JsonOption, ProfileOption, RootOption, place
from assets.terminal.harmless import harmless
from training.contract.job import DataError
from training.contract.process.exit_codes import FAILED, OK


def trace(
    model: Annotated[
        str, typer.Argument(help="a recipe, RECIPE@step-N, NAME@ALIAS, NAME/3 of the registry, or ASSET/FINGERPRINT")
    ],
    step: Annotated[int | None, typer.Option(help="show the documents of this training step")] = None,
    url: Annotated[str, typer.Option(help="show what became of the pages with this URL")] = "",
    domain: Annotated[str, typer.Option(help="show what became of all pages of this domain")] = "",
    document: Annotated[str, typer.Option(help="show what became of the page with this id")] = "",
    lineage: Annotated[
        bool, typer.Option("--lineage", help="show what the model was made from, and what was made from it")
    ] = False,
    graph: Annotated[
        Path | None, typer.Option(help="with --lineage: write a picture of it, as SVG", callback=place)
    ] = None,
    training: Annotated[str, typer.Option(help="with --step: a training other than base_model")] = "",
    text: Annotated[
        str, typer.Option(help="find the parts of this text that occur word for word in the training data")
    ] = "",
    least: Annotated[int, typer.Option(help="with --text: the fewest tokens of a part", min=1)] = 8,
    html: Annotated[
        Path | None, typer.Option(help="with --text: write an HTML page that shows the parts", callback=place)
    ] = None,
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
    from assets.answers.trace.lines import lines_of
    from assets.answers.trace.page import page_of
    from assets.answers.trace.picture import picture_of
    from assets.answers.trace.trace import answer
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    questions = {"step": step, "url": url, "domain": domain, "document": document, "text": text, "lineage": lineage}
    # Not by the value's truth: step 0 is a question.
    asked = {
        name: value for name, value in questions.items() if value is not None and value is not False and value != ""
    }
    if len(asked) != 1:
        raise DataError(
            f"trace: give one of --step, --url, --domain, --document, --text and --lineage, not {len(asked)}"
        )
    root = root.resolve()
    tracking = Tracking(load_profile(profile).tracker, root)
    if html is not None and not text:
        raise DataError("trace: --html shows the answer to --text; give a text")
    if graph is not None and not lineage:
        raise DataError("trace: --graph shows the answer to --lineage; give it too")
    shown = shown if shown is not None else 3 if text else 10
    told = answer(model, asked, root=root, tracking=tracking, training=training, texts=texts, shown=shown, least=least)
    if html is not None:
        html.write_text(page_of(told), "utf-8")
    if graph is not None:
        graph.write_text(picture_of(told), "utf-8")
    print(json.dumps(told, ensure_ascii=False) if json_ else harmless("\n".join(lines_of(told))))


def takedown(
    context: typer.Context,
    reason: Annotated[
        str, typer.Option(help="why; it stays in the tombstone and is counted with the dropped pages")
    ] = "",
    url: Annotated[str, typer.Option(help="the page of this address, in any spelling")] = "",
    domain: Annotated[str, typer.Option(help="all pages of this domain and of the hosts below it")] = "",
    document: Annotated[str, typer.Option(help="the page or the row of post-training with this id")] = "",
    text: Annotated[str, typer.Option(help="the pages and rows that hold these words, eight or more")] = "",
    source: Annotated[str, typer.Option(help="all rows of this source of post-training")] = "",
    list_: Annotated[
        Path | None,
        typer.Option(
            "--list",
            callback=place,
            help="a file of these and of folders, one a line; a reason may follow after a tab",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what holds them, and what it costs")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="withdraw without asking")] = False,
    no_rebuild: Annotated[bool, typer.Option("--no-rebuild", help="leave the rebuild to the next run")] = False,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Say what holds pages, rows or a text, and what a rebuild costs; withdraw them, rebuild, erase and prove."""
    from assets.answers.takedown.lines import lines_of
    from assets.answers.takedown.report import finish, is_done, note_found, reports_under
    from assets.answers.takedown.stored import whole
    from assets.answers.takedown.takedown import answer, asked_of, half_rebuilt, to_rebuild, withdraw
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    root = root.resolve()
    asked = asked_of(url=url, domain=domain, document=document, text=text, source=source, file=list_, reason=reason)
    compute = load_profile(profile)
    how: dict[str, Any] = {"tracking": Tracking(compute.tracker, root), "profile": compute}
    if not dry_run and not yes and (json_ or not sys.stdin.isatty()):
        raise DataError(
            "takedown: nobody can be asked here; --dry-run shows what would be withdrawn, --yes withdraws it"
        )

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    context.with_resource(whole(root, alone=not dry_run, say=say))
    if dry_run:
        told = answer(root, asked, **how)
        print(json.dumps(told, ensure_ascii=False) if json_ else harmless("\n".join(lines_of(told))))
        return

    def confirm(told: dict[str, Any]) -> bool:
        if not json_:
            print(harmless("\n".join(lines_of(told))))
        return yes or typer.confirm("Withdraw all this for good?")

    rebuilt: dict[str, list[str]] = {}

    def rebuild(recipes: list[str]) -> tuple[int, str]:
        """Build the corpus of these recipes; return the exit code of the first that fails, with the error, or OK."""
        for name in recipes:
            for asset in to_rebuild(root, name):
                report = run_named(name, profile, root, until=asset)
                rebuilt.setdefault(name, []).append(asset)
                if report.exit_code != OK:
                    return report.exit_code, report.sentence
        return OK, ""

    if not no_rebuild and (halves := half_rebuilt(root)):
        print(f"the rebuild of {', '.join(halves)} after an earlier takedown goes on first", file=sys.stderr)
        rebuild(halves)  # what still fails after it is refused below
    told = withdraw(root, asked, **how, confirm=confirm, keep=lambda told, new: note_found(root, told, new))
    code, problem = rebuild(told["rebuild"]["recipes"]) if told["done"] and not no_rebuild else (OK, "")
    report, before = None, list(reports_under(root))
    if told["done"] and not no_rebuild and code == OK:
        report = finish(root, **how, say=say)
    is_new = report is not None and report not in before
    if json_:
        more = {"rebuilt": rebuilt, "report": report, "report_is_new": is_new, "error": problem}
        print(json.dumps({**told, **more}, ensure_ascii=False))
    else:
        _say_withdrawn(told, rebuilt, report, is_new=is_new)
    if code != OK:
        print(
            f"error: the tombstone is in force, the rebuild failed: {problem}; give the command again", file=sys.stderr
        )
    elif report is not None and not is_done(report):
        code = FAILED
        print("error: words of the withdrawn text are left, or a file cannot be read; see the report", file=sys.stderr)
    raise typer.Exit(code)


PROVED_BEFORE = (
    "No file was read again: this is the report of {time}. A proof forgets the words that it looked for; `pedigree"
    " verify RECIPE` compares files with their records."
)


def _say_withdrawn(
    told: dict[str, Any], rebuilt: dict[str, list[str]], report: dict[str, Any] | None, *, is_new: bool
) -> None:
    from assets.answers.takedown.report import markdown_of
    from assets.answers.takedown.takedown import NOT_ERASED

    print(f"\n{told['done'] or 'nothing was withdrawn'}")
    if told["done"]:
        print(f"tagged `upstream_withdrawn`: {', '.join(told['tagged']) or 'no version, because none saw them'}")
        for name in told["rebuild"]["recipes"]:
            print(f"made again of {name}: {', '.join(rebuilt.get(name, ())) or 'nothing was built'}")
        if report is not None and not is_new:
            print(PROVED_BEFORE.format(time=report["time"]))
        print(NOT_ERASED if report is None else harmless("\n" + "\n".join(markdown_of(report))))
