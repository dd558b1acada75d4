"""Scores of one model folder on any suites, without a recipe: `python -m evaluation.exams.one_model request.json`.

The request is {"model", "evaluation", "settings", "output", "shard"}: a folder in the transformers layout, the recipe
section `evaluation`, a job's settings for suites that a source generates, the folder to write, or null, and the number
of processes that share the weights. The last line of the output is one JSON object: {"ok", "scores", "not_scored"}, or
{"ok", "error"} with exit code 2; of several processes the first one writes. The files are those of the stage `evaluate`
(evaluation/exams/scores.py).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from training.contract.artifact import ARTIFACT_FILE
from training.contract.job import DataError
from training.contract.model_files import CONFIG_FILE, model_digest
from training.contract.parts.contained import Bounds, contained
from training.contract.records import RecipeError, all_of, read_record
from training.contract.run_settings import RunSettings
from training.recipe.settings.evaluation import EvaluationRecipe

MODEL = "model"


def scores_of(
    folder: Path, recipe: EvaluationRecipe, settings: dict[str, Any], output: Path | None, *, shard: int = 1
) -> dict[str, dict[str, Any]]:
    """Return the scores of the model in a folder by suite, as scores.json has them; also write the files if asked.

    A suite with items that cannot be scored has `refused`, [{"row", "item", "reason"}, …].

    With `shard`, each weight is divided among so many processes, which all call this.
    """
    from evaluation.exams.scores import check_names, sit, write_scores
    from evaluation.exams.suites.canned_answers import try_suite
    from evaluation.exams.tasks import asked_exam
    from training.adopt.trial import check_tried
    from training.generate.spread import is_first

    check_tried(folder)
    check_class(folder)
    check_names(recipe.suites)
    read = {benchmark.name: asked_exam(benchmark, settings) for benchmark in recipe.suites}
    exams = [(benchmark, read[benchmark.name].items) for benchmark in recipe.suites]
    all_of(*(partial(try_suite, *exam, settings) for exam in exams if exam[0].is_task))
    is_artifact = (folder.parent / ARTIFACT_FILE).is_file()  # of which the folder is `model/`
    identity = {"folder": str(folder.resolve()), "digest": model_digest(folder.parent if is_artifact else folder)}
    candidate = sit(MODEL, folder, identity, exams, recipe, settings, run=RunSettings(shard=shard))
    scores = {result.suite: result.as_json() for result in candidate.results}
    for suite, own in scores.items():
        if refused := read[suite].refused:
            own["refused"] = refused
    if output is not None and is_first():
        output.mkdir(parents=True, exist_ok=True)
        write_scores(output, [candidate], {MODEL: scores})
    return scores


def check_class(folder: Path) -> None:
    """Raise DataError unless transformers itself has a class for the folder's model that takes exams."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, __version__

    kind = json.loads((folder / CONFIG_FILE).read_text("utf-8")).get("model_type")
    config = CONFIG_MAPPING[kind] if isinstance(kind, str) and kind in CONFIG_MAPPING else None
    if config not in AutoModelForCausalLM._model_mapping:
        raise DataError(
            f"{folder}: config.json: model_type {kind!r:.40} is no causal language model of transformers {__version__};"
            " code in a model's folder is never run, so save the model as one of these"
        )


def _scores_of_some(
    request: Mapping[str, Any], recipe: EvaluationRecipe, output: Path | None
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the scores by suite, and {suite: why} for suites of a preset of which the model can be asked no item."""
    from evaluation.exams.harness import NoneFits

    left, missed = recipe.suites, dict[str, str]()
    while True:
        try:
            some = replace(recipe, suites=left)
            return scores_of(Path(request["model"]), some, request["settings"], output, shard=request["shard"]), missed
        except NoneFits as error:
            if recipe.preset == "none" or len(left) == 1:
                raise
            missed[error.suite] = error.why
            left = tuple(suite for suite in left if suite.name != error.suite)


def _bounds(request: Mapping[str, Any]) -> Bounds:
    """Return where parts from outside may write: in the folder of the results, and never in that of the model."""
    return Bounds(folder=request["output"] or tempfile.gettempdir(), stores=(request["model"],))


def main(arguments: list[str]) -> int:
    """Score the model that a request file describes; the file is the only argument."""
    from training.pretrain.parallel.world import joined_world

    request = json.loads(Path(arguments[0]).read_text("utf-8"))
    recipe = read_record(EvaluationRecipe, request["evaluation"], where="evaluation")
    output = Path(request["output"]) if request["output"] else None
    try:
        with joined_world() as world, contained(_bounds(request) if recipe.outside_parts() else None):
            scores, missed = _scores_of_some(request, recipe, output)
    except (DataError, RecipeError) as error:
        print(json.dumps({"ok": False, "error": str(error)}, ensure_ascii=False))
        return 2
    if world.is_first:
        print(json.dumps({"ok": True, "scores": scores, "not_scored": missed}, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
