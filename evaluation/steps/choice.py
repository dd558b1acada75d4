"""Stage `choose`: the best of a training's models by the suite that `promote.best_by` names, as a model of its own.

The candidates are the last model, the kept steps of its training and, of the base model, their average. The highest
score on the suite wins; of equal ones the last model, or else the one of most steps. A score that a model was chosen
by is too high on average, the more so the more candidates there are; whoever shows it says so (`choice_in_words`).

The files of the artifact are those of the stage `evaluate` (evaluation/exams/scores.py) for all candidates, and
`model/`, a copy of the chosen one's files. The note `choice` has each candidate's score, and how the answers of each
differ from the last model's on the same items.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.decision.answers import COMPARISONS_FILE, MODEL_FOLDER, MODELS
from evaluation.exams.scores import Candidate, Exams, check_names, completeness, metrics_of, sit, write_scores
from training.contract.identity import numerics
from training.contract.job import InputArtifact, Job, Outcome, Work
from training.contract.model_files import model_files
from training.contract.scopes import AVERAGE, AVERAGED_MODEL
from training.recipe.settings.evaluation import EvaluationRecipe

LAST = "last"  # the name of the candidate with which the training ended
COPIED = ("parameters", "steps", "tokens", "skipped_steps")  # metrics of the chosen model's own record


def run(job: Job, work: Work) -> Outcome:
    """Ask every candidate the suite, and write the files that the module's docstring lists."""
    # This module keeps everything imported after it offline and quiet.
    import training.generate.model_folder  # noqa: F401 - for its effect
    from training.pretrain.parallel.world import joined_world

    with joined_world(hang_seconds=job.run.hang_seconds) as world:
        return _chosen(job, work, is_first=world.is_first)


def _chosen(job: Job, work: Work, *, is_first: bool) -> Outcome:
    """Choose a model. All processes of the job work together, and the first writes."""
    from evaluation.exams.tasks import asked_exam

    recipe = job.settings_as(EvaluationRecipe, "evaluation")
    check_names(recipe.suites)
    numerics.use_threads(job.run)
    numerics.note(job, work)
    (benchmark,) = recipe.suites
    exam = asked_exam(benchmark, job.settings)
    exams: Exams = [(benchmark, exam.items)]
    items = candidates_of(job.inputs)
    sat: list[Candidate] = []
    for number, (name, item) in enumerate(items.items(), start=1):
        work.progress.phase(f"asking {item.where} ({number} of {len(items)})")
        identity = {"asset": item.asset, "fingerprint": item.fingerprint, "digest": item.digest}
        sat.append(sit(name, item.file(MODEL_FOLDER), identity, exams, recipe, job.settings, run=job.run))
    if not is_first:
        return Outcome(files=())
    scores = {one.name: {result.suite: result.as_json() for result in one.results} for one in sat}
    files = write_scores(work.path, sat, scores)
    choice = choice_of(benchmark.name, items, scores, _compared(work.path, benchmark.name))
    chosen, last = items[choice["name"]], items[LAST]
    record = chosen.record()
    watched = last.record()["notes"].get("watched")
    return Outcome(
        files=(*files, *_copied(chosen.file(MODEL_FOLDER), work.path / MODEL_FOLDER)),
        metrics={name: value for name, value in record["metrics"].items() if name in COPIED}
        | metrics_of(scores)
        | {"candidates": len(items)},
        gates=(completeness(scores, {benchmark.name: len(exam.items)}, items),),
        notes={
            **{name: note for name, note in record["notes"].items() if name in ("rows_read", "chat_template_digest")},
            **({"watched": watched} if watched else {}),  # of the whole training, which the chosen step is of
            "choice": choice,
        },
    )


def candidates_of(inputs: Sequence[InputArtifact]) -> dict[str, InputArtifact]:
    """Return the candidates by name: the last model, the average, and the steps, the latest first."""
    named = {_name(item): item for item in inputs}
    order = (LAST, AVERAGE)
    steps = sorted(named.keys() - set(order), key=lambda name: -named[name].record()["metrics"]["steps"])
    return {name: named[name] for name in (*order, *steps) if name in named}


def _name(item: InputArtifact) -> str:
    if item.asset in MODELS.values():
        return LAST
    return AVERAGE if item.asset == AVERAGED_MODEL else item.partition.partition("@")[2]


def choice_of(
    suite: str,
    items: Mapping[str, InputArtifact],
    scores: Mapping[str, Mapping[str, Mapping[str, Any]]],
    compared: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return which candidate has the highest score, and the table of all. `compared` is what `_compared` returns."""
    best = max(items, key=lambda name: scores[name][suite]["score"])
    chosen, last = items[best], items[LAST]
    rows = [
        {
            "name": name,
            "asset": item.asset,
            "partition": item.partition,
            "digest": item.digest,
            **{field: scores[name][suite][field] for field in ("score", "interval", "n")},
            **({"against_last": compared[name]} if name in compared else {}),
        }
        for name, item in items.items()
    ]
    return {
        "suite": suite,
        "name": best,
        "asset": chosen.asset,
        "partition": chosen.partition,
        "fingerprint": chosen.fingerprint,
        "digest": chosen.digest,
        "instead_of": last.asset,
        "last": last.fingerprint,
        "candidates": rows,
    }


def _compared(folder: Path, suite: str) -> dict[str, Mapping[str, Any]]:
    """Return how each candidate's answers differ from the last model's, by the candidate's name."""
    path = folder / COMPARISONS_FILE
    pairs = json.loads(path.read_text("utf-8")).get(suite, ()) if path.exists() else ()
    kept = ("items", "won", "lost", "difference", "interval", "p_value")
    return {one["after"]: {name: one[name] for name in kept} for one in pairs if one["before"] == LAST}


def _copied(folder: Path, target: Path) -> list[str]:
    """Copy the files of a model; return their names in the artifact."""
    names = model_files(folder)
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, target / name)
    return [f"{MODEL_FOLDER}/{name}" for name in names]
