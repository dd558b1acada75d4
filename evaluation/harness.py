"""Exams by lm-eval, from the recipe's own files: no task of lm-eval's list is loaded and nothing is fetched.

Each suite becomes a task in two forms. *Raw* shows the question as text and is what a base model sees, and every
model in a multiple-choice suite. *Chat* shows it as a user's message in the model's chat template.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import datasets
import lm_eval
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.utils import hash_string

from evaluation.exams import ExamItem
from evaluation.intervals import share_interval
from evaluation.local_model import LocalModel
from training.data.exams.grading import WORKED, Values, equals_one, is_right, names_one
from training.data.exams.settings import BenchmarkRecipe

log = logging.getLogger(__name__)

Form = Literal["raw", "chat"]
TASK_VERSION = 1.0
HEADLINE = {"multiple_choice": "acc", "generate": "exact_match", "chat": "correct"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteResult:
    """One model's result on one suite. `standard_error` is None with fewer than two items."""

    suite: str
    metric: str
    score: float
    standard_error: float | None
    n: int
    chance: float
    metrics: dict[str, float]
    samples: list[dict[str, Any]]
    how: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The form in scores.json."""
        return {
            "score": self.score,
            "stderr": self.standard_error,
            "interval": list(share_interval(self.score, self.n)),
            "n": self.n,
            "chance": self.chance,
            "metric": self.metric,
            "metrics": self.metrics,
        }


def form_of(benchmark: BenchmarkRecipe, *, has_template: bool) -> Form:
    """Multiple choice is always raw: the options are continuations. The others follow the model."""
    return "chat" if has_template and benchmark.kind != "multiple_choice" else "raw"


def run_suites(
    model: LocalModel, exams: Sequence[tuple[BenchmarkRecipe, Sequence[ExamItem]]], *, has_template: bool
) -> list[SuiteResult]:
    """The model's results on every suite, in order. One pass for the raw suites, one for those in the chat template."""
    results: dict[str, SuiteResult] = {}
    for form in ("raw", "chat"):
        chosen = [(b, items) for b, items in exams if form_of(b, has_template=has_template) == form]
        if not chosen:
            continue
        tasks = {benchmark.name: _Task(benchmark, items, form) for benchmark, items in chosen}
        outcome = evaluate(
            lm=model,
            task_dict={"tasks": tasks, "groups": {}},
            bootstrap_iters=1,  # every metric is a mean, whose standard error lm-eval computes in closed form
            apply_chat_template=form == "chat",
            fewshot_as_multiturn=form == "chat",
        )
        for benchmark, items in chosen:
            results[benchmark.name] = _result(benchmark, items, form, outcome)
    return [results[benchmark.name] for benchmark, _ in exams]


class _Task(ConfigurableTask):
    """A suite as an lm-eval task whose documents are in memory."""

    def __init__(self, benchmark: BenchmarkRecipe, items: Sequence[ExamItem], form: Form) -> None:
        self._documents = [_document(item, benchmark, form) for item in items]
        values = Values([item.answers[0] for item in items if item.answers])
        super().__init__(config=task_config(benchmark, form, values))

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        """Nothing is fetched."""
        self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_list(self._documents)})

    def fewshot_context(
        self, doc: dict[str, Any], num_fewshot: int, *, chat_template: Callable[..., str] | None = None, **_: Any
    ) -> str:
        """The prompt of one item: its text, or all its turns in the chat template (lm-eval itself shows only one)."""
        assert num_fewshot == 0, "suites are asked without examples"
        return doc["prompt"] if chat_template is None else chat_template(doc["messages"])


def task_config(benchmark: BenchmarkRecipe, form: Form, values: Values) -> dict[str, Any]:
    """lm-eval's configuration of a suite in one form. `values` are the right answers of its items."""
    common = {
        "task": benchmark.name,
        "test_split": "test",
        "doc_to_text": "prompt",
        "num_fewshot": 0,
        "metadata": {"version": TASK_VERSION, "form": form},
    }
    if benchmark.kind == "multiple_choice":
        return {
            **common,
            "output_type": "multiple_choice",
            "doc_to_choice": "choices",
            "doc_to_target": "gold",
            "target_delimiter": " ",
            "metric_list": [_mean("acc"), _mean("acc_norm")],
        }
    metrics = {"generate": ("exact_match", "contains"), "chat": ("correct", "exact_match")}[benchmark.kind]
    return {
        **common,
        "output_type": "generate_until",
        "doc_to_target": "target",
        "generation_kwargs": {
            "until": ["\n"] if form == "raw" else [],
            "max_gen_toks": benchmark.max_new_tokens,
            "do_sample": False,
        },
        "process_results": judge_of(benchmark.kind, values),
        "metric_list": [_mean(name) for name in metrics],
    }


def _mean(metric: str) -> dict[str, Any]:
    return {"metric": metric, "aggregation": "mean", "higher_is_better": True}


def _document(item: ExamItem, benchmark: BenchmarkRecipe, form: Form) -> dict[str, Any]:
    if benchmark.kind == "multiple_choice":
        return {"id": item.id, "prompt": item.asked, "choices": list(item.choices), "gold": item.gold}
    turns = "\n".join(message["content"] for message in item.messages if message["role"] != "system")
    shown = {"prompt": f"Question: {turns}\nAnswer:"} if form == "raw" else {"prompt": turns, "messages": item.messages}
    return {
        "id": item.id,
        **shown,
        "target": item.answers[0],
        "answers": list(item.answers),
        "rivals": list(item.rivals),
        "asked": [message["content"] for message in item.messages] + [item.question],
    }


# Judging a generated answer.


Judge = Callable[[Mapping[str, Any], Sequence[str]], dict[str, float]]


def judge_of(kind: Literal["generate", "chat"], values: Values) -> Judge:
    """The function that scores a written answer to an item of a suite with these right answers.

    `generate` wants the value alone, or worked out; in `chat` a reply is a sentence that gives the value and no other.
    """

    def judge(document: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
        said, answers = results[0], document["answers"]
        right = is_right(said, answers, rivals=document["rivals"], asked=document["asked"], values=values)
        equal = equals_one(said, answers)
        if kind == "chat":
            return {"correct": float(right), "exact_match": float(equal)}
        worked = any(WORKED in answer for answer in answers)
        return {"exact_match": float(right if worked else equal), "contains": float(names_one(said, answers))}

    return judge


# From lm-eval's records to ours.


def _result(
    benchmark: BenchmarkRecipe, items: Sequence[ExamItem], form: Form, outcome: Mapping[str, Any]
) -> SuiteResult:
    numbers = outcome["results"][benchmark.name]
    metric = HEADLINE[benchmark.kind]
    error = numbers[f"{metric}_stderr,none"]
    records = outcome["samples"][benchmark.name]
    chance = fmean(1 / len(item.choices) for item in items) if benchmark.kind == "multiple_choice" else 0.0
    return SuiteResult(
        suite=benchmark.name,
        metric=metric,
        score=float(numbers[f"{metric},none"]),
        standard_error=float(error) if len(records) > 1 else None,
        n=len(records),
        chance=chance,
        metrics={key.removesuffix(",none"): float(value) for key, value in numbers.items() if _is_number(key, value)},
        samples=[_sample(record, benchmark, metric) for record in records],
        how={
            "form": form,
            "num_fewshot": outcome["n-shot"][benchmark.name],
            "task_version": outcome["versions"][benchmark.name],
            "task_hash": _task_hash(records),
            "higher_is_better": outcome["higher_is_better"][benchmark.name],
            "generation": {"max_new_tokens": benchmark.max_new_tokens, "do_sample": False}
            if benchmark.kind != "multiple_choice"
            else None,
            "lm_eval": lm_eval.__version__,
        },
    )


def _is_number(key: str, value: Any) -> bool:
    return key.endswith(",none") and "_stderr" not in key and isinstance(value, (int, float))


def _task_hash(records: Sequence[Mapping[str, Any]]) -> str:
    """lm-eval's own hash over every document, prompt and target of a task."""
    return hash_string("".join(r["doc_hash"] + r["prompt_hash"] + r["target_hash"] for r in records))


def _sample(record: Mapping[str, Any], benchmark: BenchmarkRecipe, metric: str) -> dict[str, Any]:
    document = record["doc"]
    sample: dict[str, Any] = {"item": document["id"], "prompt": record["arguments"][0][0]}
    if benchmark.kind == "multiple_choice":
        likelihoods = [float(response[0]) for response in record["filtered_resps"]]
        sample["choices"] = document["choices"]
        sample["target"] = document["choices"][document["gold"]]
        sample["log_likelihoods"] = likelihoods
        sample["response"] = document["choices"][likelihoods.index(max(likelihoods))]
    else:
        sample["target"] = document["target"]
        sample["response"] = str(record["filtered_resps"][0])
    sample["correct"] = bool(record[metric])
    return sample
