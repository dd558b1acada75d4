"""Score any model and check any data for contamination, without writing a recipe.

The commands are `pedigree evaluate` and `pedigree contamination`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from assets.answers.trace.kept_step import kept_step
from assets.registry.names import VERSION, not_registered
from assets.services.signals import ends_with_this
from assets.state.recipe_folders import find_recipe, load_recipe, recipe_folders
from assets.state.references import whole_model
from evaluation.contamination.verdict import told_of
from resources.compute.base import LAUNCHER
from resources.compute.size import Size
from resources.tracking.reports import Tracking
from resources.tracking.versions import registered_versions
from training.contract.job import DataError
from training.contract.model_files import CONFIG_FILE
from training.contract.records import RecipeError, all_of, read_record, unknown_names, write_record
from training.contract.secrets import masked, secret_in
from training.contract.tables import folded, table_lines
from training.contract.user_input.places import local_path
from training.contract.user_input.plain_data import read_yaml
from training.data.exams.task_checks import check_suite
from training.data.look import counted
from training.data.sections import with_data
from training.pretrain.models.config_json import OWN_TYPE
from training.recipe.exam_presets import PRESETS, left_out, suites_at_hand, with_exam_preset
from training.recipe.recipes import refuse_secrets
from training.recipe.settings.evaluation import EvaluationRecipe

MODULE = "evaluation.exams.one_model"


def suites_of(name: str, root: Path) -> tuple[EvaluationRecipe, dict[str, Any]]:
    """Return the exams called `name`, and the settings with which generated exams are read.

    `name` is a recipe, or a YAML file with a recipe's section `evaluation` (`suites` and, optionally, limits), with or
    without the section's name above it.
    """
    folders = recipe_folders(root)
    path = find_recipe(name, folders)
    data = read_yaml(path)
    refuse_secrets(data)
    if set(data) == {"evaluation"} and isinstance(data["evaluation"], dict):
        data = data["evaluation"]
    if "suites" in data or "preset" in data:
        try:
            data = with_exam_preset({"evaluation": data})["evaluation"]
            evaluation = read_record(EvaluationRecipe, data)
            all_of(*(partial(check_suite, suite) for suite in evaluation.suites))
            return _with_suites(evaluation, name), {}
        except RecipeError as error:
            raise RecipeError(f"{path.name}: {error}") from None
    recipe = load_recipe(name, folders)
    asked = with_data(recipe, {"evaluation": recipe.evaluation})
    return _with_suites(recipe.evaluation, name), {key: write_record(part) for key, part in asked.items()}


def suites_by_preset(name: str) -> tuple[EvaluationRecipe, dict[str, Any]]:
    """Return the exams of a preset that can be scored here. Raise RecipeError if there is no such preset or exam."""
    if not PRESETS.get(name):
        raise RecipeError(*unknown_names("--preset", name, [known for known in PRESETS if PRESETS[known]]))
    return read_record(EvaluationRecipe, {"preset": name, "suites": suites_at_hand(name)}), {}


def _with_suites(evaluation: EvaluationRecipe, name: str) -> EvaluationRecipe:
    if not evaluation.suites:
        raise RecipeError(f"{name}: evaluation.suites is empty; name a recipe or a file with exams")
    return evaluation


def model_folder(name: str, tracking: Tracking) -> Path:
    """Return the folder of a model: a path, RECIPE@step-N, or NAME@ALIAS or NAME/VERSION, with or without `models:/`.

    A path may also be that of an artifact with a folder `model/`. A folder that exists precedes all else of its name.
    Raise DataError if no model is there, or if one of this project's is damaged.
    """
    if not Path(name).exists() and (kept := kept_step(name, tracking.root)) is not None:
        return whole_model(kept.path / "model")
    folder = _registered(name, tracking) if is_version(name) else local_path(name, "MODEL")
    folder = folder / "model" if (folder / "model" / "config.json").is_file() else folder
    if not (folder / "config.json").is_file():
        raise DataError(f"{name}: no model in {folder}; a folder in the transformers layout is needed, or NAME@ALIAS")
    return whole_model(folder)


def check_left_to_right(folder: Path) -> None:
    """Raise DataError if the model in a folder is one that no class of transformers runs, so that it writes no text."""
    if json.loads((folder / CONFIG_FILE).read_text("utf-8")).get("model_type") == OWN_TYPE:
        raise DataError(
            f"{folder}: {OWN_TYPE}, a model that sees later tokens or has parts of no class of transformers; it answers"
            " nothing, and model_scores of its recipe says what it fills in"
        )


def is_version(name: str) -> bool:
    """Whether a name means a version of the registry, and not a folder."""
    return name.startswith("models:") or (VERSION.fullmatch(name) is not None and not Path(name).exists())


def _registered(name: str, tracking: Tracking) -> Path:
    from assets.registry.versions import check_whole
    from resources.tracking.registry import Registry, explained

    if (found := VERSION.fullmatch(name)) is None:
        raise DataError(f"{name}: expected models:/NAME@ALIAS or models:/NAME/VERSION")
    registry = Registry(tracking, found["name"])
    with explained(tracking):
        known = registered_versions(tracking)
        own = [one for one in known if one.name == found["name"]]
        meant = [one.version for one in own if one.version == found["version"] or found["alias"] in one.aliases]
        if not meant:
            no_folder = "" if name.startswith("models:") else "; nor is there a folder of this name"
            raise DataError(not_registered(name, found["name"], known) + no_folder)
        version = registry.version(meant[0])
        check_whole(version, registry)
        return registry.folder_of(version)


def evaluate(
    folder: Path, suites: tuple[EvaluationRecipe, Mapping[str, Any]], output: Path | None, *, size: Size
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the scores of the model in a folder, {suite: {"score", "interval", "n", …}}, and {suite: why it has none}.

    Only suites of a preset may have none.

    They are made in a process of its own, or in as many on this machine as the profile's `size` says if it divides the
    weights (`shard`). With `output`, scores and answers are written there. Raise DataError for what is wrong with model
    or exams.
    """
    check_left_to_right(folder)
    evaluation, settings = suites
    evaluation.check_processes(size.processes if size.shard > 1 else 1)
    request = {
        "model": str(folder),
        "evaluation": write_record(evaluation),
        "settings": dict(settings),
        "output": str(output) if output else None,
        "shard": size.shard,
    }
    if size.shard > 1 and size.processes % size.shard:
        raise DataError(
            f"shard={size.shard}: pedigree evaluate works on this machine, and the profile's {size.processes} processes"
            " of a node are no multiple of it"
        )
    together = [*LAUNCHER, "--standalone", f"--nproc-per-node={size.processes}"] if size.shard > 1 else []
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(request))
        file.flush()
        argv = [sys.executable, *together, "-m", MODULE, file.name]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, preexec_fn=ends_with_this())
    if not done.stdout.strip():
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RuntimeError(f"python -m {MODULE} ended with exit code {done.returncode}: {said}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    if not answer["ok"]:
        raise DataError(answer["error"])
    return answer["scores"], left_out(evaluation.preset) | answer["not_scored"]


def score_lines(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the scores as lines of a table, with 95 % intervals, and below it what was not scored or scored 0."""
    rows = []
    for suite, one in scores.items():
        low, high = one["interval"]
        interval = f"{low:.3f}–{high:.3f}"
        rows.append((suite, f"{one['score']:.3f}", interval, str(one["n"]), f"{one['chance']:.3f}", one["metric"]))
    head = ("suite", "score", "95 % interval", "items", "chance", "metric")
    zeros = {suite: one["scored_0"] for suite, one in scores.items() if "scored_0" in one}
    told = [
        line
        for suite, kinds in zeros.items()
        for line in folded(f"  {suite}: {', '.join(f'{number:,} {kind}' for kind, number in kinds.items())}")
    ]
    refused = [
        line
        for suite, one in scores.items()
        if (found := one.get("refused"))
        for line in folded(f"  {suite}: {len(found):,}; row {found[0]['row']}: {found[0]['reason']}")
    ]
    return [
        *table_lines(rows, head=head, right={1, 3, 4}),
        *(["", "items that cannot be scored, and are in no score:", *refused] if refused else []),
        *(["", "answers that scored 0:", *told] if zeros else []),
    ]


def check_no_secret(places: Sequence[str]) -> None:
    """Raise DataError if the address of a place holds a secret, which the results would show."""
    for place in places:
        if what := secret_in(place):
            raise DataError(f"{masked(place)} holds {what}, and the results name it; fetch the file beforehand")


def verdict_lines(report: Mapping[str, Any], gate: Mapping[str, Any]) -> list[str]:
    """Return the verdict, the numbers of each suite, and the findings that the gate's evidence shows, as lines."""
    texts = report["scanned"]["texts"]["pretraining"]
    files = len(report["scanned"]["files"])
    read = f"{texts:,} text{'s' * (texts != 1)} of {files:,} file{'s' * (files != 1)}"
    lines = [f"{told_of(report)}: {read} {'was' if texts == 1 else 'were'} read"]
    left = report["not_read"]
    lines += [f"  not read: {counted(one['files'])} {one['ending']} ({one['why']})" for one in left["files"]]
    lines += [f"  not read: {number:,} record{'s' * (number != 1)} ({why})" for why, number in left["records"].items()]
    for name, suite in report["suites"].items():
        uncleared = f", {len(suite['not_cleared'])} cannot be cleared" if suite["not_cleared"] else ""
        questions = f", {len(suite['questions_seen'])} questions without answer" if suite["questions_seen"] else ""
        lines.append(f"  {name}: {suite['found_items']} of {suite['items']} items found{questions}{uncleared}")
    for one in gate["evidence"]["findings"]:
        place = one.get("url") or one.get("row") or ""
        where = f"{one.get('warc_file') or one.get('file')} {one.get('warc_offset', place)}"
        lines.append(f"  {one['benchmark']} {one['item']} in {where}: {' '.join(one['text'].split())[:100]!r}")
    return lines
