"""Commands about made models: `chat`, `export`, `attest`, `serve`, `evaluate`, `contamination` and `compare`."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from assets.answers.trace.kept_step import kept_step, recipe_and_step
from assets.commands.options import (
    DEFAULT_ROOT,
    JsonOption,
    ProfileOption,
    RecipeArgument,
    RootOption,
    check_asset,
    place,
    read,
)
from assets.services.signals import ends_with_this
from assets.state.compare import compare
from assets.state.references import whole_model
from assets.terminal.standard_error import say
from training.contract.artifact import Artifact
from training.contract.process.exit_codes import OK, REFUSED
from training.contract.records import RecipeError
from training.contract.scopes import last_model
from training.contract.user_input.places import local_path


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
    """Talk to a recipe's model, the last of its chain if none is named, or RECIPE@step-N."""
    made = _made(recipe, root, asset)
    arguments = [sys.executable, "-m", "training.posttrain.chat", str(whole_model(made.file("model")))]
    arguments += ["--prompt", prompt] if prompt else []
    if traced:
        from assets.answers.trace.trace import traced_answers
        from resources.profile import load_profile
        from resources.tracking.reports import Tracking

        tracking = Tracking(load_profile(profile).tracker, root.resolve())
        model = f"{made.record['asset']}/{made.fingerprint}"
        raise typer.Exit(traced_answers(arguments, model, root=root.resolve(), tracking=tracking, json_=json_))
    arguments += ["--json"] if json_ else []
    raise typer.Exit(subprocess.run(arguments, check=False, preexec_fn=ends_with_this()).returncode)


def _made(recipe: str, root: Path, asset: str) -> Artifact:
    if (kept := kept_step(recipe, root.resolve())) is not None:
        return kept
    comparison = compare(read(recipe, root), root.resolve())
    asset = asset or last_model(comparison.recipe)
    check_asset(asset)
    return comparison.made(asset, comparison.recipe.name, named=recipe)


KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--key", callback=place, help="private key (PEM, elliptic curve) to sign with; also by PEDIGREE_SIGNING_KEY"
    ),
]


def export(
    recipe: RecipeArgument,
    folder: Annotated[Path, typer.Argument(help="empty or new folder, or an address such as s3://bucket/prefix")],
    asset: Annotated[str, typer.Option(help="a model or decontaminated_documents; empty: the last model")] = "",
    gguf: Annotated[str, typer.Option(help="also one file for llama.cpp: f32, bf16, f16 or q8_0 (not scored)")] = "",
    key: KeyOption = None,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Lay out a model or the corpus for upload to a model hub, with card, attestation, origin and licences."""
    from assets.answers.models.attest import SIGNING_KEY, key_named
    from assets.answers.models.export import CORPUS, export
    from assets.services.root import stored
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    objects = stored(folder, "FOLDER")
    target = objects or local_path(folder, "FOLDER")
    tracking = Tracking(load_profile(profile).tracker, root.resolve())
    key = key_named(key, SIGNING_KEY) if asset != CORPUS else key
    named, step = recipe_and_step(recipe)
    comparison = compare(read(named, root), root.resolve())
    names = export(comparison, asset, target, step=step, tracking=tracking, key=key, gguf=gguf, named=named)
    where = objects.address if objects else str(folder)
    print(json.dumps({"folder": where, "files": names}) if json_ else "\n".join(names))


def attest(
    model: Annotated[
        str, typer.Argument(help="a recipe, RECIPE@step-N, NAME@ALIAS, NAME/3 of the registry, or ASSET/FINGERPRINT")
    ],
    folder: Annotated[Path, typer.Argument(help="empty or new folder", callback=place)],
    key: KeyOption = None,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Write what a model was made from, from the crawl on, as an in-toto statement; sign it and the model by a key."""
    from assets.answers.models.attest import SIGNING_KEY, key_named
    from assets.answers.models.attest import attest as write
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    tracking = Tracking(load_profile(profile).tracker, root.resolve())
    key = key_named(key, SIGNING_KEY)
    names = write(model, folder, root=root.resolve(), tracking=tracking, key=key)
    print(json.dumps({"folder": str(folder), "files": names, "signed": key is not None}) if json_ else "\n".join(names))


SuitesHelp = "a recipe, or a YAML file with the section `evaluation` of one"


def evaluate(
    model: Annotated[
        str,
        typer.Argument(help="folder of a transformers model, RECIPE@step-N, NAME@ALIAS or NAME/3 of the registry"),
    ],
    suites: Annotated[str, typer.Option(help=SuitesHelp)] = "",
    preset: Annotated[str, typer.Option(help="base, chat, code or full: suites of public benchmarks at hand")] = "",
    output: Annotated[Path | None, typer.Option(help="folder for scores and every answer", callback=place)] = None,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Score any model on any benchmarks, in the same way as the models of the chain."""
    from assets.answers.models.outside import evaluate, model_folder, score_lines, suites_by_preset, suites_of
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    if bool(suites) == bool(preset):
        raise RecipeError("name --suites or --preset, one of them")
    exams, loaded = suites_of(suites, root.resolve()) if suites else suites_by_preset(preset), load_profile(profile)
    folder = model_folder(model, Tracking(loaded.tracker, root.resolve()))
    say([f"asking {model} the exams {', '.join(suite.name for suite in exams[0].suites)} ..."])
    scores, missed = evaluate(folder, exams, output, size=loaded.size_for("model_scores"))
    if json_:
        print(json.dumps({"model": str(folder), "scores": scores, "not_scored": missed}))
        return
    print("\n".join([*score_lines(scores), *(f"not scored: {name}: {why}" for name, why in missed.items())]))


def contamination(
    data: Annotated[list[str], typer.Argument(help="files, folders or patterns: rows, WARC, WET, texts, code, books")],
    against: Annotated[str, typer.Option(help=SuitesHelp)],
    output: Annotated[
        Path | None, typer.Option(help="folder for contamination.json and findings.jsonl", callback=place)
    ] = None,
    root: RootOption = DEFAULT_ROOT,
    json_: JsonOption = False,
) -> None:
    """Look for items of exams in any data, by the chain's own rule. Exit code 3 if the verdict is contaminated."""
    from assets.answers.models.outside import check_no_secret, suites_of, verdict_lines
    from evaluation.contamination.scan import contamination, files_of
    from training.data.look import counted

    check_no_secret(data)
    recipe, settings = suites_of(against, root.resolve())
    found = files_of(data)
    say([f"looking in {counted(len(found.files))} for items of {', '.join(suite.name for suite in recipe.suites)} ..."])
    report, findings, gate = contamination(found, recipe, settings, output)
    if json_:
        print(json.dumps({"report": report, "findings": findings, "gate": gate}, ensure_ascii=False))
    else:
        print("\n".join(verdict_lines(report, gate)))
    raise typer.Exit(OK if gate["passed"] else REFUSED)


def serve(
    model: Annotated[
        str, typer.Argument(help="a folder, RECIPE@step-N, NAME@ALIAS of the registry, or a recipe: its last model")
    ],
    port: Annotated[int, typer.Option(help="port on this machine", min=1, max=65535)] = 8000,
    receipts: Annotated[
        bool, typer.Option("--receipts", help="on request, add to an answer what of it stands in the training data")
    ] = False,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
) -> None:
    """Serve a model with OpenAI's interface, for programs on this machine, until interrupted."""
    from assets.answers.models.offers import followed_by, offered
    from assets.answers.models.serve import serve
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    root = root.resolve()
    tracking = Tracking(load_profile(profile).tracker, root)
    offer = partial(offered, root=root, tracking=tracking, has_receipts=receipts)
    first = offer(model)
    say([f"loading {first.name} ..."])
    raise typer.Exit(serve(first, port, followed_by(model, first, offer, tracking)))


def compare_(
    models: Annotated[
        list[str], typer.Argument(help="recipes, RECIPE@step-N, NAME@ALIAS or NAME/3 of the registry, or artifacts")
    ],
    html: Annotated[Path | None, typer.Option(help="write a page with plots", callback=place)] = None,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Compare models with the first one: recipes, artifacts, scores on the same items, seeds, compute and losses."""
    from assets.answers.models.sides import sides_of
    from evaluation.decision.compare import compared
    from evaluation.report.compare_page import lines_of, page_of
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    root = root.resolve()
    told = compared(sides_of(models, root, Tracking(load_profile(profile).tracker, root)))
    if html is not None:
        html.write_text(page_of(told), "utf-8")
    print(json.dumps(told, ensure_ascii=False) if json_ else "\n".join(lines_of(told)))
