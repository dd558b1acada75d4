"""Stage `evaluate`: scores of the base, SFT and aligned models on every suite.

The files of the artifact:

- `scores.json`: {model: {suite: {"score", "interval", "n", …}}}, with `kinds` where items say their kind;
- `harness.json`: each model's digest, and how each score was made; the scores hold for these digests only;
- `samples/<model>_<suite>.jsonl.zst`: every item with prompt, target, and answer or log-likelihoods;
- `comparisons.json`: the models compared with each other on the same items (evaluation/decision/paired.py);
- `held_out_bits_per_byte.json`: each model's bits per byte on held-out documents of the corpus;
- `bits_per_byte.json`: the same on a text from outside the corpus, if the recipe names one;
- `filling.json`: instead of all these, what a base model that sees ahead fills in (evaluation/exams/objectives/).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.decision.answers import (
    BITS_FILES,
    COMPARISONS_FILE,
    CORPUS,
    FILLING_FILE,
    HELD_OUT,
    MODEL_FOLDER,
    MODELS,
    OUTSIDE,
    models_among,
    sample_file,
)
from evaluation.decision.paired import Answers, by_item, comparisons
from training.contract.artifact import write_json
from training.contract.identity import numerics
from training.contract.job import Gate, InputArtifact, Job, Outcome, Work
from training.contract.records import RecipeError
from training.contract.run_settings import RunSettings
from training.data.documents import write_lines
from training.data.exams.settings import BenchmarkRecipe
from training.order.settings import MixtureRecipe
from training.pretrain.objectives.settings import ObjectiveRecipe
from training.recipe.settings.evaluation import EvaluationRecipe

if TYPE_CHECKING:
    from evaluation.exams.harness import SuiteResult
    from evaluation.exams.items import ExamItem

OBJECTIVE = "objective"  # the section of the settings with which a base model sees ahead
Exams = Sequence[tuple[BenchmarkRecipe, "Sequence[ExamItem]"]]


def run(job: Job, work: Work) -> Outcome:
    """Evaluate every model on every suite, and write the files that the module's docstring lists."""
    # This module keeps everything imported after it offline and quiet.
    import training.generate.model_folder  # noqa: F401 - for its effect
    from training.pretrain.parallel.world import joined_world

    with joined_world(hang_seconds=job.run.hang_seconds) as world:
        return _evaluated(job, work, is_first=world.is_first)


def _evaluated(job: Job, work: Work, *, is_first: bool) -> Outcome:
    """Evaluate every model. All processes of the job work together, and all get the same scores; the first writes."""
    from evaluation.exams.tasks import asked_exam
    from evaluation.exams.unseen_text import held_out_texts, read_texts

    recipe = job.settings_as(EvaluationRecipe, "evaluation")
    check_names(recipe.suites)
    numerics.use_threads(job.run)
    numerics.note(job, work)
    read = {benchmark.name: asked_exam(benchmark, job.settings) for benchmark in recipe.suites}
    exams = [(benchmark, read[benchmark.name].items) for benchmark in recipe.suites]
    corpus = job.inputs_of(CORPUS)
    held_out = job.settings_as(MixtureRecipe, "mixture").held_out_fraction
    texts = {
        HELD_OUT: held_out_texts(corpus, fraction=held_out, limit=recipe.held_out_limit),
        OUTSIDE: read_texts(recipe, job.settings),
    }
    candidates = []
    models = models_among(job)
    for step, (name, item) in enumerate(models.items(), start=1):
        identity = {"asset": item.asset, "fingerprint": item.fingerprint, "digest": item.digest}
        folder = item.file(MODEL_FOLDER)
        work.progress.phase(f"asking the {name} model ({step} of {len(models)})")
        if OBJECTIVE in job.settings:
            candidate = fill_in(name, folder, identity, job, texts)
        else:
            candidate = sit(name, folder, identity, exams, recipe, job.settings, texts=texts, run=job.run)
        work.progress.log(step=step, models=len(models), **{f"{name}_{r.suite}": r.score for r in candidate.results})
        candidates.append(candidate)
    if not is_first:
        return Outcome(files=())
    controls = _controls(exams, corpus, candidates)
    said = {one.name: one.answer_weights for one in candidates if one.answer_weights}
    scores = {
        candidate.name: {
            r.suite: with_controls(r.as_json(), controls.get((r.suite, r.set_aside), {})) for r in candidate.results
        }
        for candidate in candidates
    }
    return Outcome(
        files=tuple(write_scores(work.path, candidates, scores)),
        metrics={**metrics_of(scores), **_bits_of(candidates), **_filling_of(candidates)},
        gates=(completeness(scores, {benchmark.name: len(items) for benchmark, items in exams}, models),),
        notes={
            "models": {candidate.name: candidate.identity for candidate in candidates},
            "refused_items": {name: exam.refused for name, exam in read.items() if exam.refused},
            **({"set_aside_items": aside} if (aside := _set_aside(candidates)) else {}),
            **({"answer_weights": said} if said else {}),
        },
    )


def _set_aside(candidates: Sequence[Candidate]) -> dict[str, dict[str, list[str]]]:
    """Return {model: {suite: items}}: the items that do not fit into a model's positions."""
    named = {one.name: {r.suite: list(r.set_aside) for r in one.results if r.set_aside} for one in candidates}
    return {name: suites for name, suites in named.items() if suites}


def check_names(suites: Sequence[BenchmarkRecipe]) -> None:
    """Raise RecipeError if two suites share a name, because a name becomes a file and a metric."""
    names = [suite.name for suite in suites]
    if len(set(names)) != len(names):
        raise RecipeError(f"evaluation.suites: names must differ, got {names}")


def _controls(
    exams: Exams, corpus: Sequence[InputArtifact], candidates: Sequence[Candidate]
) -> dict[tuple[str, tuple[str, ...]], dict[str, dict[str, float]]]:
    """Return {(suite, items set aside): {kind: {control: share}}} for suites whose items name their subjects.

    The controls read the pages that the models were pretrained on, and answer the items that a model answered. No page
    is read if no suite has such items.
    """
    from evaluation.exams.controls import controls_from, shares_by_kind
    from training.data.documents import read_documents

    asked = {
        benchmark.name
        for benchmark, items in exams
        if benchmark.kind == "multiple_choice" and all(item.kind and item.subjects for item in items)
    }
    if not asked or not corpus:
        return {}
    files = [path for item in corpus for path in sorted(item.file("documents").glob("*.parquet"))]
    controls = controls_from([row["text"] for path in files for row in read_documents(path, ["text"])])
    answered = {(r.suite, r.set_aside): r.items for one in candidates for r in one.results if r.suite in asked}
    return {key: shares_by_kind(controls, items) for key, items in answered.items()}


def with_controls(entry: Mapping[str, Any], controls: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return a suite's scores with the scores of the controls added to each kind of item, as `controls`.

    `above_controls` says whether the model's score is above chance and all controls. Suites without controls are
    unchanged.
    """
    from evaluation.exams.controls import is_above

    if not controls:
        return dict(entry)
    kinds = {
        kind: {**of, "controls": controls[kind], "above_controls": is_above(of, controls[kind])}
        for kind, of in entry["kinds"].items()
    }
    return {**entry, "kinds": kinds}


class Candidate:
    """One model's scores and answers. Its weights are in memory only while it is evaluated."""

    def __init__(self, name: str, identity: Mapping[str, Any]) -> None:
        self.name = name
        self.identity = dict(identity)  # what says which model it is; how it was evaluated is added
        self.results: list[SuiteResult] = []
        self.answer_weights = ""  # why its weights stayed gathered while it answered, or did not; "" if it was whole
        self.bits: dict[str, dict[str, Any]] = {}  # bits per byte on held-out documents and on the text from outside
        self.filling: dict[str, Any] = {}  # what a model that answers no exam fills in of these texts, and its probe


def fill_in(
    name: str, folder: Path, identity: Mapping[str, Any], job: Job, texts: Mapping[str, Sequence[str]]
) -> Candidate:
    """Score a base model that sees ahead by what it fills in of the texts, and by a probe if the recipe names one.

    Each process of the job computes all of it.
    """
    from evaluation.exams.objectives.decoder import OwnModel
    from evaluation.exams.objectives.filling import filled
    from evaluation.exams.objectives.probe import probed, read_labelled

    objective, uri = job.settings_as(ObjectiveRecipe, OBJECTIVE), job.settings_as(EvaluationRecipe, "evaluation").probe
    model, candidate = OwnModel(folder), Candidate(name, identity)
    made = {where: found for where, some in texts.items() if some and (found := filled(model, objective, some))}
    probe = {"probe": probed(model, *read_labelled(uri, job.settings), is_causal=False)} if uri else {}
    candidate.filling = {"objective": objective.kind, "texts": made, **probe}
    candidate.identity |= {"precision": "float32", "max_length": model.model.config.max_length}
    return candidate


def sit(
    name: str,
    folder: Path,
    identity: Mapping[str, Any],
    exams: Exams,
    recipe: EvaluationRecipe,
    settings: Mapping[str, Any],
    *,
    texts: Mapping[str, Sequence[str]] | None = None,
    run: RunSettings | None = None,
) -> Candidate:
    """Score the model in a folder on every suite, and measure its bits per byte on each of the named `texts`.

    With the `shard` of `run`, each weight of the model is divided among so many processes of the job. None: there is
    one process.
    """
    from evaluation.exams.harness import run_suites
    from evaluation.exams.local_model import LocalModel, template_digest
    from evaluation.exams.own_exam import ask_folder, ask_generator
    from evaluation.exams.unseen_text import bits_per_byte
    from training.posttrain.answer_weights import while_answering

    recipe.check_processes(int(os.environ.get("WORLD_SIZE", "1")))
    candidate = Candidate(name, identity)
    asked = _by_what_they_ask(exams)
    results = [ask_folder(*exam, folder) for exam in asked["folder"]]  # before the model is in memory for the others
    run = run or RunSettings()
    rows = recipe.batch_size
    gathers, why = while_answering(folder, run.answer_weights, shard=run.shard, rows=rows)
    candidate.answer_weights = why
    model = LocalModel(folder, batch_size=rows, shard=run.shard, gathers=gathers)
    template = template_digest(model.tokenizer)
    results += [ask_generator(*exam, model.sampler) for exam in asked["generator"]]
    results += run_suites(model, asked["lm-eval"], has_template=template is not None, settings=settings)
    order = [benchmark.name for benchmark, _ in exams]
    candidate.results = sorted(results, key=lambda one: order.index(one.suite))
    candidate.bits = {name: bits_per_byte(model, some) for name, some in (texts or {}).items() if some}
    candidate.identity |= {
        "chat_template_sha256": template,
        "conversations": model.sampler.encoder.how,
        "precision": str(model.model.dtype).removeprefix("torch."),
        "max_length": model.max_length,
        "truncated_prompts": model.truncated_prompts,
    }
    return candidate


def _by_what_they_ask(exams: Exams) -> dict[str, list[tuple[BenchmarkRecipe, Sequence[ExamItem]]]]:
    """Return the exams that lm-eval asks, and those whose harness asks our generator or the model's folder."""
    found = {"lm-eval": [], "generator": [], "folder": []}
    for benchmark, items in exams:
        own = benchmark.own_harness
        found[own.harness.model if own else "lm-eval"].append((benchmark, items))
    return found


def completeness(
    scores: Mapping[str, Mapping[str, Mapping[str, Any]]], items: Mapping[str, int], models: Iterable[str] = MODELS
) -> Gate:
    """Return the gate that each of `models` has a finite score from 0 to 1 on every suite, over all of its items.

    Items that were set aside, because they do not fit into the model's positions, are counted and have no score.
    """
    problems = []
    for model in models:
        for suite, expected in items.items():
            entry = scores.get(model, {}).get(suite)
            if entry is None:
                problems.append(f"{model} has no score on {suite}")
                continue
            error = entry["stderr"]
            if not math.isfinite(entry["score"]) or not 0 <= entry["score"] <= 1:
                problems.append(f"{model} on {suite}: score {entry['score']} is not a number from 0 to 1")
            if entry["n"] + entry.get("set_aside", 0) != expected:
                problems.append(f"{model} on {suite}: {entry['n']} of {expected} items have a score")
            if entry["n"] > 1 and (error is None or not math.isfinite(error)):
                problems.append(f"{model} on {suite}: standard error {error} is not a number")
    return Gate(name="scores_complete", passed=not problems, evidence={"suites": dict(items), "problems": problems})


def metrics_of(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """Return `<model>_<suite>` and the ends of its interval, `_low` and `_high`, as metrics of the run.

    `<model>_<suite>_<kind>` is the score of a kind of item, and `<control>_<suite>_<kind>` that of a control.
    """
    metrics: dict[str, float] = {}
    for model, suites in scores.items():
        for suite, entry in suites.items():
            metrics[f"{model}_{suite}"] = entry["score"]
            metrics[f"{model}_{suite}_low"], metrics[f"{model}_{suite}_high"] = entry["interval"]
            for kind, of in entry.get("kinds", {}).items():
                metrics[f"{model}_{suite}_{kind}"] = of["score"]
                metrics[f"{model}_{suite}_{kind}_low"], metrics[f"{model}_{suite}_{kind}_high"] = of["interval"]
                metrics[f"{suite}_{kind}_items"] = of["n"]
                metrics |= {f"{control}_{suite}_{kind}": share for control, share in of.get("controls", {}).items()}
                if "above_controls" in of:
                    metrics[f"{model}_{suite}_{kind}_above_controls"] = float(of["above_controls"])
    return metrics


def _bits_of(candidates: Sequence[Candidate]) -> dict[str, float]:
    return {
        f"{one.name}_{name}_bits_per_byte": bits["bits_per_byte"]
        for one in candidates
        for name, bits in one.bits.items()
    }


def _filling_of(candidates: Sequence[Candidate]) -> dict[str, float]:
    """Return `<model>_<text>_<figure>` and `<model>_probe_accuracy` as metrics of the run."""
    found = {}
    for one in candidates:
        for where, entry in one.filling.get("texts", {}).items():
            found |= {f"{one.name}_{where}_{name}": figure["value"] for name, figure in entry["figures"].items()}
        if probe := one.filling.get("probe"):
            found[f"{one.name}_probe_accuracy"] = probe["accuracy"]["value"]
    return found


def write_scores(folder: Path, candidates: Sequence[Candidate], scores: Mapping[str, Any]) -> list[str]:
    """Write scores, how they were made, comparisons, bits per byte and every answer; return the names of the files."""
    how = {
        candidate.name: {**candidate.identity, "suites": {result.suite: result.how for result in candidate.results}}
        for candidate in candidates
    }
    answers = {
        candidate.name: {r.suite: Answers(metric=r.metric, correct=by_item(r.samples)) for r in candidate.results}
        for candidate in candidates
    }
    tables: dict[str, Any] = {"scores.json": scores, "harness.json": how, COMPARISONS_FILE: comparisons(answers)}
    tables |= {
        file: {candidate.name: candidate.bits[name] for candidate in candidates if name in candidate.bits}
        for name, file in BITS_FILES.items()
    }
    tables[FILLING_FILE] = {candidate.name: candidate.filling for candidate in candidates if candidate.filling}
    files = [file for file, table in tables.items() if table or file == "scores.json"]
    for file in files:
        write_json(folder / file, tables[file])
    for candidate in candidates:
        for result in candidate.results:
            name = sample_file(candidate.name, result.suite)
            write_lines(folder / name, result.samples)
            files.append(name)
    return files
