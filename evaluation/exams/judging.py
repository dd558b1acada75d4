"""Stage `judge`: rewards of the models' answers by the reward model, a judge from outside, and the prompts' rubrics.

The stage comes after training and scoring, so that a changed reward model neither trains DPO nor scores an exam again.
The files of the artifact:

- `rewards.json`: the learned reward of each suite's answers;
- `alignment.json`: the learned and true rewards of answers that were sampled to the alignment prompts;
- `samples/<model>_alignment_answers.jsonl.zst`: these answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.decision.answers import MODEL_FOLDER, MODELS, models_among, sample_file
from training.contract.artifact import write_json
from training.contract.identity import numerics
from training.contract.job import Job, Outcome, Work
from training.data.documents import read_lines, write_lines
from training.generate.turns import Chat
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.preferences.pairs import read_pairs
from training.recipe.settings.evaluation import JUDGED_MODELS, EvaluationRecipe

if TYPE_CHECKING:
    from evaluation.exams.answer_rewards import Judgement, SampledAnswers


def run(job: Job, work: Work) -> Outcome:
    """Judge the answers to the suites, sample and judge answers to prompts, and write the files listed above."""
    # This module keeps everything imported after it offline and quiet.
    import training.generate.model_folder  # noqa: F401 - for its effect
    from training.pretrain.parallel.world import joined_world

    with joined_world(hang_seconds=job.run.hang_seconds) as world:
        return _judged(job, work, is_first=world.is_first)


def _judged(job: Job, work: Work, *, is_first: bool) -> Outcome:
    """Judge all answers. All processes of the job work together; the first asks a judge from outside, and writes."""
    from evaluation.exams.answer_rewards import judge
    from evaluation.exams.local_model import rewards
    from training.posttrain.answer_weights import while_answering

    recipe = job.settings_as(EvaluationRecipe, "evaluation")
    numerics.use_threads(job.run)
    numerics.note(job, work)
    gathers, why = while_answering(  # with three models in memory, as before and after alignment
        models_among(job)["aligned"].file(MODEL_FOLDER),
        job.run.answer_weights,
        shard=job.run.shard,
        rows=recipe.batch_size,
        models=JUDGED_MODELS,
    )
    groups = [*_answers(job, recipe, gathers=gathers)]
    conversations = [conversation for group in groups for conversation in group.conversations]
    folder = job.input_of("reward_model").file(MODEL_FOLDER)
    shard = job.run.shard
    learned, cut = (
        rewards(folder, conversations, batch_size=recipe.batch_size, shard=shard) if conversations else ([], 0)
    )
    compared = _before_and_after(job, folder, gathers=gathers)
    if not is_first:
        return Outcome(files=())
    own = recipe.outside_judge
    judgement = judge(groups, learned, None if own is None else [own(one) for one in conversations])
    return Outcome(
        files=tuple(_write(work.path, judgement)),
        metrics={**judgement.metrics(), **compared, "truncated_conversations": cut},
        notes={"answer_weights": why} if why else {},
    )


def _answers(job: Job, recipe: EvaluationRecipe, *, gathers: bool) -> Iterator[SampledAnswers]:
    """Yield each model's answers to the suites asked in the chat template, and to the alignment prompts."""
    from evaluation.exams.answer_rewards import SampledAnswers
    from evaluation.exams.items import read_exam
    from training.posttrain.prompts.judged import read_prompts

    scores = job.input_of("model_scores")
    how = json.loads(scores.file("harness.json").read_text("utf-8"))
    prompts = read_prompts(recipe.alignment_prompts, job.settings)
    asked = {
        suite.name: [item.messages for item in read_exam(suite, job.settings).items]
        for suite in recipe.suites
        if any(how[model]["suites"][suite.name]["form"] == "chat" for model in MODELS)
    }
    for model in MODELS:
        for suite, messages in asked.items():
            if how[model]["suites"][suite]["form"] == "chat":
                said = [str(row["response"]) for row in read_lines(scores.file(sample_file(model, suite)))]
                yield SampledAnswers(model=model, suite=suite, prompts=messages, answers=said)
        if prompts and how[model]["chat_template_sha256"] is not None:
            folder = models_among(job)[model].file(MODEL_FOLDER)
            yield _sampled(model, folder, prompts, recipe, shard=job.run.shard, gathers=gathers)


def _sampled(
    name: str,
    folder: Path,
    prompts: Sequence[Mapping[str, Any]],
    recipe: EvaluationRecipe,
    *,
    shard: int,
    gathers: bool,
) -> SampledAnswers:
    """Return one sampled answer to each alignment prompt by the model in a folder."""
    from evaluation.exams.answer_rewards import SampledAnswers
    from training.generate.sampler import Sampler, seeds_of

    model = Sampler(folder, batch_size=recipe.batch_size, shard=shard, gathers=gathers)
    asked = [list(prompt["messages"]) for prompt in prompts]
    answers = model.answers(
        model.encoder.conversations(asked, is_prompt=True),
        max_new_tokens=recipe.alignment_max_new_tokens,
        temperature=recipe.alignment_temperature,
        seeds=seeds_of(recipe.seed, len(prompts)),
    )
    return SampledAnswers(
        model=name,
        suite="",
        prompts=asked,
        answers=answers,
        tokens=[len(model.encoder.text(answer)) for answer in answers],
        ids=[str(prompt["id"]) for prompt in prompts],
        rubrics=[prompt["rubric"] for prompt in prompts],
    )


def _before_and_after(job: Job, reward_model: Path, *, gathers: bool) -> dict[str, float]:
    """Return how alignment changed reward, length and divergence on the prompts of the held-out preference pairs."""
    from evaluation.exams.held_out import before_and_after, unique_prompts

    align = job.settings_as(AlignRecipe, "align")
    sft, aligned = (models_among(job)[name].file(MODEL_FOLDER) for name in ("sft", "aligned"))
    pairs = read_pairs(job.input_of("preference_data"), Chat.of(sft), max_length=align.max_length, where="align")
    prompts = unique_prompts(pairs.held_out_rows)
    return before_and_after(sft, aligned, reward_model, prompts, align, shard=job.run.shard, gathers=gathers)


def _write(folder: Path, judgement: Judgement) -> list[str]:
    write_json(folder / "rewards.json", judgement.by_suite)
    files = ["rewards.json"]
    if judgement.alignment:
        write_json(folder / "alignment.json", judgement.alignment)
        files.append("alignment.json")
        for model, rows in judgement.alignment_samples.items():
            name = f"samples/{model}_alignment_answers.jsonl.zst"
            write_lines(folder / name, rows)
            files.append(name)
    return files
