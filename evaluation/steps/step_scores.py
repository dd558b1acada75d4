"""Stage `score_step`: the scores of a model as it was after one of the steps that its training keeps.

The files are those of the stage `evaluate` (evaluation/exams/scores.py) for one model, which has the name of its
training's last model: `base`, `sft` or `aligned`. Where an item is answered by likelihood, its kept sample also has
`right`: the log-likelihood and the bytes of its first right answer. The suite then has `bits_per_byte` of all these
answers together, as while the model was trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from evaluation.decision.answers import MODEL_FOLDER, NAMES
from evaluation.decision.intervals import ratio_interval
from evaluation.exams.scores import Exams, check_names, completeness, metrics_of, sit, write_scores
from training.contract.identity import numerics
from training.contract.job import Job, Outcome, Work
from training.contract.scopes import WHOLE
from training.data.exams.settings import BenchmarkRecipe
from training.pretrain.watch.divisors import DIVISORS
from training.recipe.settings.evaluation import EvaluationRecipe

if TYPE_CHECKING:
    from evaluation.exams.harness import SuiteResult
    from evaluation.exams.items import ExamItem


def run(job: Job, work: Work) -> Outcome:
    """Score the kept step on every suite, and write the files that the module's docstring lists."""
    # This module keeps everything imported after it offline and quiet.
    import training.generate.model_folder  # noqa: F401 - for its effect
    from training.pretrain.parallel.world import joined_world

    with joined_world(hang_seconds=job.run.hang_seconds) as world:
        return _scored(job, work, is_first=world.is_first)


def _scored(job: Job, work: Work, *, is_first: bool) -> Outcome:
    """Score the kept step. All processes of the job work together; the first writes."""
    from evaluation.exams.tasks import asked_exam

    recipe = job.settings_as(EvaluationRecipe, "evaluation")
    check_names(recipe.suites)
    numerics.use_threads(job.run)
    numerics.note(job, work)
    asked = {benchmark.name: asked_exam(benchmark, job.settings) for benchmark in recipe.suites}
    exams: Exams = [(benchmark, asked[benchmark.name].items) for benchmark in recipe.suites]
    item = job.input_of(*WHOLE)
    name = NAMES[item.asset]
    identity = {"asset": item.asset, "fingerprint": item.fingerprint, "digest": item.digest}
    candidate = sit(name, item.file(MODEL_FOLDER), identity, exams, recipe, job.settings, run=job.run)
    if not is_first:
        return Outcome(files=())
    candidate.results = [
        with_right_answers(result, benchmark, job.settings)
        for result, (benchmark, _) in zip(candidate.results, exams, strict=True)
    ]
    suites = {result.suite: result.as_json() | bits_of(result.samples) for result in candidate.results}
    bits = {
        f"{name}_{suite}_bits_per_byte": told["bits_per_byte"]
        for suite, told in suites.items()
        if "bits_per_byte" in told
    }
    trained, metrics = item.record()["metrics"], metrics_of({name: suites}) | bits
    read = {"tokens": trained["tokens"]} if "tokens" in trained else {}  # a training on rows counts none
    work.progress.log(step=trained["steps"], **read, **metrics)
    return Outcome(
        files=tuple(write_scores(work.path, [candidate], {name: suites})),
        metrics=metrics | {"step": trained["steps"], **read},
        gates=(completeness({name: suites}, {suite: len(exam.items) for suite, exam in asked.items()}, [name]),),
        notes={"refused_items": {suite: exam.refused for suite, exam in asked.items() if exam.refused}},
    )


def with_right_answers(result: SuiteResult, benchmark: BenchmarkRecipe, settings: Mapping[str, Any]) -> SuiteResult:
    """Return a result whose samples have `right`, if the suite's score follows from the likelihoods of its choices."""
    if result.metric not in DIVISORS or not all(map(_has_each_likelihood, result.samples)):
        return result
    right = right_answers(benchmark, result.items, settings)
    return replace(
        result,
        samples=[
            sample | {"right": {"log_likelihood": sample["log_likelihoods"][number], "bytes": size}}
            for sample, (number, size) in zip(result.samples, right, strict=True)
        ],
    )


def right_answers(
    benchmark: BenchmarkRecipe, items: Sequence[ExamItem], settings: Mapping[str, Any]
) -> Iterator[tuple[int, int]]:
    """Yield the number and the bytes of each item's first right answer, as they count while a model trains.

    The number is that of the answer's log-likelihood among those of the item.
    """
    from evaluation.exams.harness import suite_task
    from evaluation.exams.watched.right_choices import judged

    task, _ = suite_task(benchmark, items, settings, has_template=False)
    task.build_all_requests()
    for _, some in groupby(task.instances, key=lambda one: one.doc_id):
        told = judged(task, benchmark, [(one, ([], [])) for one in some])
        yield told["right"][0], told["bytes"]


def _has_each_likelihood(sample: Mapping[str, Any]) -> bool:
    return len(sample.get("log_likelihoods", ())) == len(sample.get("choices", [""]))


def bits_of(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `bits_per_byte` of the right answers of all items together, with its 95 % interval as `bits_interval`.

    The result is empty for samples without `right`; the interval of one item is None.
    """
    right = [sample["right"] for sample in samples if "right" in sample]
    if not right:
        return {}
    bits, sizes = [-one["log_likelihood"] / math.log(2) for one in right], [one["bytes"] for one in right]
    interval = list(ratio_interval(bits, sizes)) if len(right) > 1 else None
    return {"bits_per_byte": sum(bits) / sum(sizes), "bits_interval": interval}
