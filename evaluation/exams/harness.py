"""Exams by lm-eval, from the recipe's own files; nothing is fetched.

A suite may name a task of lm-eval (evaluation.exams.tasks). Every other suite becomes a task here, in one of two forms.
*Raw* shows the question as plain text; it is used for base models, and for all models in multiple-choice suites. *Chat*
shows the question as a user's message in the model's chat template.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, Literal

import datasets
import lm_eval
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.utils import hash_string

from evaluation.decision.intervals import share_interval
from evaluation.exams.grouped.group_task import task_of
from evaluation.exams.items import ExamItem
from evaluation.exams.local_model import LocalModel, Prompt, TokenizedRequests
from evaluation.exams.scored.lost_points import counted, whys
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.data.exams.grading import WORKED, Values, equals_one, is_right, names_one, normalized
from training.data.exams.settings import BenchmarkRecipe
from training.generate.turns import Message

Form = Literal["raw", "chat"]
TASK_VERSION = 1.0
HEADLINE = {"multiple_choice": "acc", "generate": "exact_match", "chat": "correct"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteResult:
    """One model's result on one suite.

    `standard_error` is None with fewer than two items. `kinds` has the score of each kind of item, for items that say
    their kind. `samples` has one row for each item, with why a written answer scored 0; `how` says how the score was
    made. `set_aside` names the items that do not fit into the model's positions and have no part in the score; `items`
    are those that have.
    """

    suite: str
    metric: str
    score: float
    standard_error: float | None
    n: int
    chance: float
    metrics: dict[str, float]
    kinds: dict[str, dict[str, Any]]
    samples: list[dict[str, Any]]
    how: dict[str, Any]
    set_aside: tuple[str, ...] = ()
    items: tuple[ExamItem, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the result in the form that scores.json has."""
        return {
            "score": self.score,
            "stderr": self.standard_error,
            "interval": list(share_interval(self.score, self.n)),
            "n": self.n,
            "chance": self.chance,
            "metric": self.metric,
            "metrics": self.metrics,
            **({"set_aside": len(self.set_aside)} if self.set_aside else {}),
            **({"kinds": self.kinds} if self.kinds else {}),
            **({"scored_0": zeros} if (zeros := counted(self.samples)) else {}),
        }


def run_suites(
    model: LocalModel,
    exams: Sequence[tuple[BenchmarkRecipe, Sequence[ExamItem]]],
    *,
    has_template: bool,
    settings: Mapping[str, Any] | None = None,
) -> list[SuiteResult]:
    """Return the model's results on every suite, in order.

    lm-eval runs once for all raw suites and once for all suites in the chat template. `settings` are the job's, for
    few-shot examples that a source generates.
    """
    given = settings or {}
    fits = {benchmark.name: fitting(model, benchmark, items, given, has_template) for benchmark, items in exams}
    made = {benchmark.name: suite_task(benchmark, fits[benchmark.name], given, has_template) for benchmark, _ in exams}
    results: dict[str, SuiteResult] = {}
    for form in ("raw", "chat"):
        chosen = [(benchmark, items) for benchmark, items in exams if made[benchmark.name][1] == form]
        if not chosen:
            continue
        tasks = {benchmark.name: made[benchmark.name][0] for benchmark, _ in chosen}
        outcome = evaluate(
            lm=model,
            task_dict={"tasks": tasks, "groups": {}},
            bootstrap_iters=0,  # the error of a mean has a closed form; other metrics are reported without an error
            apply_chat_template=form == "chat",
            fewshot_as_multiturn=form == "chat",
            confirm_run_unsafe_code=True,  # in the sandbox; check_own_task refuses what would run elsewhere
        )
        for benchmark, items in chosen:
            kept, task = fits[benchmark.name], tasks[benchmark.name]
            aside = Counter(item.id for item in items) - Counter(item.id for item in kept)
            result = _result(task, benchmark, kept, form, outcome, model.generated)
            results[benchmark.name] = replace(result, set_aside=tuple(sorted(aside.elements())), items=tuple(kept))
    return [results[benchmark.name] for benchmark, _ in exams]


def fitting(
    model: TokenizedRequests,
    benchmark: BenchmarkRecipe,
    items: Sequence[ExamItem],
    settings: Mapping[str, Any],
    has_template: bool,
) -> list[ExamItem]:
    """Return the items of which the model can read every prompt and answer whole. Raise NoneFits if there is none."""
    kept = list(items)
    while kept:
        task, form = suite_task(benchmark, kept, settings, has_template)
        if task.OUTPUT_TYPE == "generate_until" and model.cannot_write:
            raise NoneFits(benchmark, model.cannot_write)
        in_turns = form == "chat"
        task.build_all_requests(
            apply_chat_template=in_turns,
            fewshot_as_multiturn=in_turns,
            chat_template=model.apply_chat_template if in_turns else None,
        )
        if in_turns and not all(isinstance(request.args[0], Prompt) for request in task.instances):
            raise RecipeError(f"{benchmark.name}: the task changes the text of a conversation in the chat template")
        long = {request.doc_id for request in task.instances if not model.fits(request)}
        if not long:
            return kept
        # Asked again, because the examples in a prompt are drawn by the item's place.
        kept = [item for place, item in enumerate(kept) if place not in long]
    raise NoneFits(benchmark, too_long(items, model.max_length))


class NoneFits(DataError):
    """The error that a model can be asked none of a suite's items."""

    def __init__(self, benchmark: BenchmarkRecipe, why: str) -> None:
        self.suite, self.why = benchmark.name, why
        super().__init__(f"{self.suite}: {self.why}")


def too_long(items: Sequence[ExamItem], positions: int) -> str:
    """Return why a model can be asked none of these items, where each is too long for it."""
    return f"none of {len(items)} items fits with its answer into the {positions} positions of the model"


def suite_task(
    benchmark: BenchmarkRecipe, items: Sequence[ExamItem], settings: Mapping[str, Any], has_template: bool
) -> tuple[ConfigurableTask, Form]:
    """Return the suite's task and its form. Generated answers use the chat template, likelihoods are of raw text."""
    if benchmark.is_task:
        task = task_of(benchmark, items, settings)
        return task, "chat" if has_template and task.OUTPUT_TYPE == "generate_until" else "raw"
    form: Form = "chat" if has_template and benchmark.kind != "multiple_choice" else "raw"
    return _Task(benchmark, items, form), form


class _Task(ConfigurableTask):
    """A suite as an lm-eval task whose documents are in memory."""

    def __init__(self, benchmark: BenchmarkRecipe, items: Sequence[ExamItem], form: Form) -> None:
        self._documents = [_document(item, benchmark, form) for item in items]
        values = Values([item.answers[0] for item in items if item.answers])
        super().__init__(config=task_config(benchmark, form, values))

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        """Set the dataset from memory; nothing is downloaded."""
        self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_list(self._documents)})

    def fewshot_context(
        self, doc: dict[str, Any], num_fewshot: int, *, chat_template: Callable[..., str] | None = None, **_: Any
    ) -> str:
        """Return the prompt of one item: its text, or all its turns in the chat template (lm-eval shows only one)."""
        assert num_fewshot == 0, "suites are asked without examples"
        return doc["prompt"] if chat_template is None else chat_template(doc["messages"])


def task_config(benchmark: BenchmarkRecipe, form: Form, values: Values) -> dict[str, Any]:
    """Return lm-eval's configuration of a suite in one form. `values` are the right answers of the suite's items."""
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
    messages = item.messages
    shown = {"prompt": raw_prompt(messages)} if form == "raw" else {"prompt": turns_of(messages), "messages": messages}
    return {
        "id": item.id,
        **shown,
        "target": item.answers[0],
        "answers": list(item.answers),
        "rivals": list(item.rivals),
        "asked": [message["content"] for message in item.messages] + [item.question],
    }


def turns_of(messages: Sequence[Message]) -> str:
    """Return the turns of a conversation as lines of text, without the system prompt."""
    return "\n".join(message["content"] for message in messages if message["role"] != "system")


def raw_prompt(messages: Sequence[Message]) -> str:
    """Return how a model without a chat template is asked a conversation; it answers to the end of the line."""
    return f"Question: {turns_of(messages)}\nAnswer:"


# Judging a generated answer.


Judge = Callable[[Mapping[str, Any], Sequence[str]], dict[str, float]]


def judge_of(kind: Literal["generate", "chat"], values: Values) -> Judge:
    """Return the function that scores a written answer to an item of a suite whose right answers are `values`.

    In `generate`, an answer must be the value alone; if the right answer is worked out, its number must come last.
    In `chat`, an answer may be a sentence that gives this value and no other.
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
    task: ConfigurableTask,
    benchmark: BenchmarkRecipe,
    items: Sequence[ExamItem],
    form: Form,
    outcome: Mapping[str, Any],
    generated: Mapping[str, dict[str, Any]],
) -> SuiteResult:
    numbers = {key: value for key, value in outcome["results"][benchmark.name].items() if _is_number(key, value)}
    metric, filter_name = headline(benchmark, numbers)
    records = [record for record in outcome["samples"][benchmark.name] if record["filter"] == filter_name]
    if len(records) != len(items):
        raise RecipeError(f"{benchmark.name}: the task made {len(records)} questions of {len(items)} items")
    if benchmark.is_task:
        check_shown(benchmark, items, records)
    values = [float(record[metric]) for record in records]
    is_choice = task.OUTPUT_TYPE == "multiple_choice"
    chances = [1 / len(record["arguments"]) if is_choice else 0.0 for record in records]
    return SuiteResult(
        suite=benchmark.name,
        metric=metric if filter_name == "none" else f"{metric},{filter_name}",
        score=float(numbers[f"{metric},{filter_name}"]),
        standard_error=stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None,
        n=len(records),
        chance=fmean(chances),
        metrics={key.removesuffix(",none"): float(value) for key, value in numbers.items()},
        kinds=by_kind(items, values, chances),
        samples=[_sample(record, item, task, metric) for record, item in zip(records, items, strict=True)],
        how={
            "form": form,
            "num_fewshot": outcome["n-shot"][benchmark.name],
            "task_version": outcome["versions"][benchmark.name],
            "task_hash": _task_hash(records),
            "higher_is_better": outcome["higher_is_better"][benchmark.name],
            "lm_eval": lm_eval.__version__,
            **_how(task, benchmark, generated.get(str(task.config.task))),
        },
    )


def check_shown(benchmark: BenchmarkRecipe, items: Sequence[ExamItem], records: Sequence[Mapping[str, Any]]) -> None:
    """Raise RecipeError if an exam's prompts do not show the questions by which its items are searched for.

    A prompt shows a question that has half of its words in it; half of the items must be shown.
    """
    hidden = sum(not _shows(record, item) for record, item in zip(records, items, strict=True))
    if 2 * hidden > len(items):
        raise RecipeError(
            f"{benchmark.name}: the exam does not show the field {benchmark.question_field!r} of {hidden} of"
            f" {len(items)} items; training data are searched by question_field, so name the field that is asked"
        )


def _shows(record: Mapping[str, Any], item: ExamItem) -> bool:
    shown = {word for request in record["arguments"] for part in request for word in normalized(str(part)).split()}
    words = set(normalized(item.question).split())
    return 2 * len(words & shown) >= len(words)


def by_kind(items: Sequence[ExamItem], values: Sequence[float], chances: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Return {kind: {"score", "interval", "n", "chance"}} for the items that have a kind."""
    places: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        if item.kind:
            places.setdefault(item.kind, []).append(place)
    kinds = {}
    for kind, some in sorted(places.items()):
        score = fmean(values[place] for place in some)
        interval = list(share_interval(score, len(some)))
        chance = fmean(chances[place] for place in some)
        kinds[kind] = {"score": score, "interval": interval, "n": len(some), "chance": chance}
    return kinds


def _how(task: ConfigurableTask, benchmark: BenchmarkRecipe, generated: dict[str, Any] | None) -> dict[str, Any]:
    """Return how the score of a suite was made: how the model says that it generated the answers, None if it did not.

    For a task of lm-eval, also its name and answer filters.
    """
    if not benchmark.is_task:
        return {"generation": generated}
    return {
        "generation": generated,
        "task": benchmark.task or benchmark.task_file,
        "filters": _named(task.config.filter_list),
    }


def _named(value: Any) -> Any:
    """Return a configuration with functions, which tasks that run programs have as filters, replaced by their names."""
    if isinstance(value, Mapping):
        return {key: _named(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_named(one) for one in value]
    return value.__qualname__ if callable(value) else value


def headline(benchmark: BenchmarkRecipe, numbers: Mapping[str, float]) -> tuple[str, str]:
    """Return the metric that is the suite's score, and the filter through which lm-eval computes it."""
    if not benchmark.is_task:
        return HEADLINE[benchmark.kind], "none"
    named = [key for key in numbers if not benchmark.metric or benchmark.metric in (key, key.partition(",")[0])]
    if not named:
        raise RecipeError(f"{benchmark.name}: metric={benchmark.metric!r}; the task has {', '.join(numbers)}")
    metric, _, filter_name = named[0].partition(",")
    return metric, filter_name


def _is_number(key: str, value: Any) -> bool:
    return "," in key and "_stderr" not in key and isinstance(value, (int, float))


def _task_hash(records: Sequence[Mapping[str, Any]]) -> str:
    """lm-eval's own hash over every document, prompt and target of a task."""
    return hash_string("".join(r["doc_hash"] + r["prompt_hash"] + r["target_hash"] for r in records))


def _sample(record: Mapping[str, Any], item: ExamItem, task: ConfigurableTask, metric: str) -> dict[str, Any]:
    """Return the kept sample of one item.

    Raise RecipeError if the metric gives the item a value other than 0 or 1; of several answers, other than from 0 to
    1.
    """
    several = len(record["resps"][0]) > 1
    if not (0 <= record[metric] <= 1 if several else record[metric] in (0, 1)):
        raise RecipeError(f"{task.config.task}: metric {metric} gives an item {record[metric]}; take one of 0 and 1")
    sample: dict[str, Any] = {"item": item.id, "prompt": record["arguments"][0][0]}
    if task.OUTPUT_TYPE == "multiple_choice":
        likelihoods = [float(response[0]) for response in record["filtered_resps"]]
        choices = list(item.choices) or [continuation.strip() for _, continuation in record["arguments"]]
        sample["choices"] = choices
        sample["target"] = item.choices[item.gold] if item.choices else item.answers[0]
        sample["log_likelihoods"] = likelihoods
        sample["response"] = choices[likelihoods.index(max(likelihoods))]
    elif task.OUTPUT_TYPE == "loglikelihood":
        sample["target"] = item.answers[0]
        sample["log_likelihoods"] = [float(record["filtered_resps"][0][0])]
        sample["response"] = ""  # no text is generated: the metric is whether the target is the most likely text
    else:
        sample["target"] = item.answers[0]
        sample["response"] = str(record["resps"][0][0])
        extracted = record["filtered_resps"][0]
        if isinstance(extracted, list) and len(extracted) == 1:  # of a filter that makes a program of each answer
            extracted = extracted[0]
        if str(extracted) != sample["response"]:
            sample["extracted"] = (
                list(map(str, extracted)) if several and isinstance(extracted, list) else str(extracted)
            )
        said = {"responses": list(map(str, record["resps"][0])), "score": float(record[metric])}
        sample |= said if several else {}
    sample["correct"] = bool(record[metric] == 1)
    why = whys(record, item, task, is_right=sample["correct"])
    return sample | ({"why": why} if why else {})
