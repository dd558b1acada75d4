"""Stage `watched_items`: items of the benchmarks that the base model answers while it is trained, as tokens.

Training knows neither lm-eval nor a tokenizer, so `items.jsonl` holds as tokens what the scorer would ask a base model:
a sample of each suite's items in a drawn order, whose beginnings are samples too. Each line has `suite`, `item`,
`requests` ([tokens of the context, tokens of the continuation] of each choice), `lengths` (by which the log-likelihood
of each choice is divided), `right` (the choices that are accepted), `bytes` (of the first right answer in UTF-8) and
`is_greedy`: whether the item is right if its only continuation is the likeliest text. `languages.json` has the language
of each held-out document that a look reads, if the recipe asks for losses by language.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import groupby
from typing import Any

# Keeps everything that is imported after it offline and quiet.
import training.generate.model_folder  # noqa: F401  # isort: skip

from lm_eval.api.instance import Instance

from evaluation.exams.harness import fitting, suite_task
from evaluation.exams.items import ExamItem, read_exam
from evaluation.exams.local_model import Asked, Scored, TokenizedRequests
from evaluation.exams.watched.held_out_languages import held_out_languages
from evaluation.exams.watched.right_choices import judged
from training.contract.artifact import write_text
from training.contract.job import Job, Outcome, Work
from training.data.exams.settings import BenchmarkRecipe
from training.generate.encoder import Encoder
from training.pretrain.watch.items import ITEMS_FILE
from training.pretrain.watch.languages import LANGUAGES_FILE
from training.recipe.settings.evaluation import EvaluationRecipe


class _Asked(TokenizedRequests):
    """Keeps the tokens of all requests instead of answering them."""

    def __init__(self, encoder: Encoder, max_length: int) -> None:
        super().__init__(encoder, max_length)
        self.tokens: list[tuple[list[int], list[int]]] = []

    def _loglikelihood_tokens(self, requests: list[Asked], **_: Any) -> list[Scored]:
        self.tokens += [(context, continuation) for _, context, continuation in requests]
        return [(0.0, False)] * len(requests)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        raise AssertionError("such suites are refused")

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        raise AssertionError("such suites are refused")


def run(job: Job, work: Work) -> Outcome:
    """Write the drawn items of each suite, and note those that are too long for the rows of the training."""
    recipe, drawn = job.settings_as(EvaluationRecipe, "evaluation"), job.settings["drawn"]
    asked = _Asked(Encoder(job.input_of("tokenizer").folder), drawn["sequence_length"])
    lines, aside = list[str](), dict[str, int]()
    for step, benchmark in enumerate(recipe.suites, start=1):
        items = read_exam(benchmark, job.settings).items
        kept = fitting(asked, benchmark, items, job.settings, has_template=False)
        rows = _rows(asked, benchmark, kept, job.settings)
        random.Random(f"{drawn['seed']}/{benchmark.name}").shuffle(rows)
        lines += [json.dumps(row) for row in rows[: drawn["items"]]]
        aside[benchmark.name] = len(items) - len(kept)
        work.progress.log(step=step, suites=len(recipe.suites), items=len(lines))
    write_text(work.path / ITEMS_FILE, "".join(f"{line}\n" for line in lines))
    files, metrics = (ITEMS_FILE,), dict[str, float](items=len(lines))
    if job.inputs_of("training_plan"):
        languages = held_out_languages(job)
        write_text(work.path / LANGUAGES_FILE, json.dumps(languages))
        files, metrics["languages"] = (*files, LANGUAGES_FILE), len(set(languages))
    return Outcome(
        files=files,
        metrics=metrics,
        notes={"set_aside": {name: number for name, number in aside.items() if number}},
    )


def _rows(
    asked: _Asked, benchmark: BenchmarkRecipe, items: Sequence[ExamItem], settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return a row for each item, which is asked as it is in the suite's scores."""
    task, _ = suite_task(benchmark, items, settings, has_template=False)
    task.build_all_requests()
    asked.tokens.clear()
    asked.loglikelihood(task.instances, disable_tqdm=True)
    pairs = groupby(zip(task.instances, asked.tokens, strict=True), key=lambda pair: pair[0].doc_id)
    return [
        {"suite": benchmark.name, "item": item.id, **judged(task, benchmark, list(some))}
        for item, (_, some) in zip(items, pairs, strict=True)
    ]
