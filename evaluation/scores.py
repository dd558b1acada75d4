"""Stage `evaluate`: scores of the base, SFT and aligned models on every suite, and the rewards of their answers.

The files of the artifact:

- `scores.json`: {model: {suite: {"score", "interval", "n", …}}};
- `harness.json`: each model's digest, and how each score was made; the scores hold for these digests only;
- `samples/<model>_<suite>.jsonl.zst`: every item with prompt, target, and answer or log-likelihoods;
- `bits_per_byte.json`: each model's bits per byte on a text from outside the corpus, if the recipe names one;
- `rewards.json`: the learned reward of each suite's answers;
- `alignment.json`: the learned and true rewards of answers that were sampled to held-out prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.answers import MODELS, sample_file
from training import numerics
from training.artifact import write_json
from training.data.documents import write_lines
from training.data.exams.settings import BenchmarkRecipe
from training.evaluation_settings import EvaluationRecipe
from training.job import Gate, InputArtifact, Job, Outcome, Work
from training.records import RecipeError

if TYPE_CHECKING:
    from evaluation.alignment import Judgement
    from evaluation.exams import ExamItem
    from evaluation.harness import SuiteResult

MODEL_FOLDER = "model"
Exams = Sequence[tuple[BenchmarkRecipe, "Sequence[ExamItem]"]]


def run(job: Job, work: Work) -> Outcome:
    """Evaluate every model on every suite, judge the answers, and write the files that the module's docstring lists."""
    # This module keeps everything imported after it offline and quiet.
    import training.generate.model_folder  # noqa: F401 - for its effect
    from evaluation.alignment import read_prompts
    from evaluation.exams import read_exam
    from evaluation.outside import read_texts

    recipe = job.settings_as(EvaluationRecipe, "evaluation")
    check_names(recipe.suites)
    numerics.use_threads(job.run)
    numerics.note(job, work)
    read = {benchmark.name: read_exam(benchmark, job.settings) for benchmark in recipe.suites}
    exams = [(benchmark, read[benchmark.name].items) for benchmark in recipe.suites]
    prompts = read_prompts(recipe.alignment_prompts, job.settings)
    texts = read_texts(recipe, job.settings)
    candidates = []
    for step, (name, asset) in enumerate(MODELS.items(), start=1):
        item = job.input_of(asset)
        identity = {"asset": item.asset, "fingerprint": item.fingerprint, "digest": item.digest}
        folder = item.file(MODEL_FOLDER)
        candidate = sit(name, folder, identity, exams, recipe, job.settings, prompts=prompts, texts=texts)
        work.progress.log(step=step, models=len(MODELS), **{f"{name}_{r.suite}": r.score for r in candidate.results})
        candidates.append(candidate)
    judgement = _judge(job.input_of("reward_model"), candidates, exams, prompts, recipe)
    scores = {candidate.name: {r.suite: r.as_json() for r in candidate.results} for candidate in candidates}
    return Outcome(
        files=tuple(_write(work.path, candidates, scores, judgement)),
        metrics={**metrics_of(scores), **_bits_of(candidates), **judgement.metrics()},
        gates=(completeness(scores, {benchmark.name: len(items) for benchmark, items in exams}),),
        notes={
            "models": {candidate.name: candidate.identity for candidate in candidates},
            "refused_items": {name: exam.refused for name, exam in read.items() if exam.refused},
        },
    )


def check_names(suites: Sequence[BenchmarkRecipe]) -> None:
    """Raise RecipeError if there is no suite or if two share a name, because a name becomes a file and a metric."""
    names = [suite.name for suite in suites]
    if not names or len(set(names)) != len(names):
        raise RecipeError(f"evaluation.suites: at least one is needed and names must differ, got {names}")


class Candidate:
    """One model's scores and answers. Its weights are in memory only while it is evaluated."""

    def __init__(self, name: str, identity: Mapping[str, Any]) -> None:
        self.name = name
        self.identity = dict(identity)  # what says which model it is; how it was evaluated is added
        self.results: list[SuiteResult] = []
        self.answers: list[str] = []  # to the alignment prompts
        self.answer_tokens: list[int] = []
        self.bits: dict[str, Any] = {}  # bits per byte on the text from outside the corpus


def sit(
    name: str,
    folder: Path,
    identity: Mapping[str, Any],
    exams: Exams,
    recipe: EvaluationRecipe,
    settings: Mapping[str, Any],
    *,
    prompts: Sequence[Mapping[str, Any]] = (),
    texts: Sequence[str] = (),
) -> Candidate:
    """Evaluate the model in a folder on every suite, and on the alignment prompts if it has a chat template."""
    from evaluation.harness import run_suites
    from evaluation.local_model import LocalModel, template_digest
    from evaluation.outside import bits_per_byte
    from training.generate.sampler import seeds_of

    candidate = Candidate(name, identity)
    model = LocalModel(folder, batch_size=recipe.batch_size)
    template = template_digest(model.tokenizer)
    candidate.results = run_suites(model, exams, has_template=template is not None, settings=settings)
    if prompts and template is not None:
        candidate.answers = model.answers(
            [model.apply_chat_template(list(prompt["messages"])) for prompt in prompts],
            max_new_tokens=recipe.alignment_max_new_tokens,
            temperature=recipe.alignment_temperature,
            seeds=seeds_of(recipe.seed, len(prompts)),
        )
        candidate.answer_tokens = [len(model.tok_encode(answer)) for answer in candidate.answers]
    candidate.bits = bits_per_byte(model, texts)
    candidate.identity |= {
        "chat_template_sha256": template,
        "precision": str(model.model.dtype).removeprefix("torch."),
        "max_length": model.max_length,
        "truncated_prompts": model.truncated_prompts,
    }
    return candidate


def _judge(
    reward_model: InputArtifact,
    candidates: Sequence[Candidate],
    exams: Exams,
    prompts: Sequence[Mapping[str, Any]],
    recipe: EvaluationRecipe,
) -> Judgement:
    """Return the learned reward of every answer given through a chat template, and the true one where known."""
    from evaluation.alignment import Answers, judge
    from evaluation.local_model import rewards

    items = {benchmark.name: exam for benchmark, exam in exams}
    groups = []
    for candidate in candidates:
        for result in candidate.results:
            if result.how["form"] == "chat":
                said = [str(sample["response"]) for sample in result.samples]
                asked = [item.messages for item in items[result.suite]]
                groups.append(Answers(model=candidate.name, suite=result.suite, prompts=asked, answers=said))
        if candidate.answers:
            asked = [list(prompt["messages"]) for prompt in prompts]
            groups.append(
                Answers(
                    model=candidate.name,
                    suite="",
                    prompts=asked,
                    answers=candidate.answers,
                    tokens=candidate.answer_tokens,
                    ids=[str(prompt["id"]) for prompt in prompts],
                    rubrics=[prompt["rubric"] for prompt in prompts],
                )
            )
    conversations = [conversation for group in groups for conversation in group.conversations]
    folder = reward_model.file(MODEL_FOLDER)
    learned = rewards(folder, conversations, batch_size=recipe.batch_size) if conversations else []
    return judge(groups, learned)


def completeness(scores: Mapping[str, Mapping[str, Mapping[str, Any]]], items: Mapping[str, int]) -> Gate:
    """Return the gate that every model has a finite score between 0 and 1 on every suite, over all of its items."""
    problems = []
    for model in MODELS:
        for suite, expected in items.items():
            entry = scores.get(model, {}).get(suite)
            if entry is None:
                problems.append(f"{model} has no score on {suite}")
                continue
            error = entry["stderr"]
            if not math.isfinite(entry["score"]) or not 0 <= entry["score"] <= 1:
                problems.append(f"{model} on {suite}: score {entry['score']} is not a number from 0 to 1")
            if entry["n"] != expected:
                problems.append(f"{model} on {suite}: {entry['n']} of {expected} items have a score")
            if expected > 1 and (error is None or not math.isfinite(error)):
                problems.append(f"{model} on {suite}: standard error {error} is not a number")
    return Gate(name="scores_complete", passed=not problems, evidence={"suites": dict(items), "problems": problems})


def metrics_of(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """Return `<model>_<suite>` and the ends of its interval, `_low` and `_high`, as metrics of the run."""
    metrics: dict[str, float] = {}
    for model, suites in scores.items():
        for suite, entry in suites.items():
            metrics[f"{model}_{suite}"] = entry["score"]
            metrics[f"{model}_{suite}_low"], metrics[f"{model}_{suite}_high"] = entry["interval"]
    return metrics


def _bits_of(candidates: Sequence[Candidate]) -> dict[str, float]:
    return {f"{one.name}_outside_bits_per_byte": one.bits["bits_per_byte"] for one in candidates if one.bits}


def _write(folder: Path, candidates: Sequence[Candidate], scores: Mapping[str, Any], judgement: Judgement) -> list[str]:
    """Write the stage's files, and return their names."""
    files = [*write_scores(folder, candidates, scores), "rewards.json"]
    write_json(folder / "rewards.json", judgement.by_suite)
    if judgement.alignment:
        write_json(folder / "alignment.json", judgement.alignment)
        files.append("alignment.json")
        for model, rows in judgement.alignment_samples.items():
            name = f"samples/{model}_alignment_answers.jsonl.zst"
            write_lines(folder / name, rows)
            files.append(name)
    return files


def write_scores(folder: Path, candidates: Sequence[Candidate], scores: Mapping[str, Any]) -> list[str]:
    """Write scores, how they were made, bits per byte and every answer, and return the names of the files."""
    how = {
        candidate.name: {**candidate.identity, "suites": {result.suite: result.how for result in candidate.results}}
        for candidate in candidates
    }
    write_json(folder / "scores.json", scores)
    write_json(folder / "harness.json", how)
    files = ["scores.json", "harness.json"]
    if bits := {candidate.name: candidate.bits for candidate in candidates if candidate.bits}:
        write_json(folder / "bits_per_byte.json", bits)
        files.append("bits_per_byte.json")
    for candidate in candidates:
        for result in candidate.results:
            name = sample_file(candidate.name, result.suite)
            write_lines(folder / name, result.samples)
            files.append(name)
    return files
