"""Stage `check_suites`: each suite's scoring is tried with answers made for it, before anything is trained.

Refused is a suite of which no right answer scores 1, or whose wrong, empty or overlong answers score as much as the
right ones on average. No model is asked.
`suites.json` has {suite: {"items", "right", "wrong", "empty", "overlong", "not_right"}}: the number of items, the mean
score of each kind of answer, and the items whose own answer scores 1 in no form that a task is known to read. Choices
have no empty and no overlong answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import Any

# Keeps everything that is imported after it offline and quiet.
import training.generate.model_folder  # noqa: F401  # isort: skip

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from evaluation.exams.harness import check_shown, headline, suite_task
from evaluation.exams.items import ExamItem
from evaluation.exams.tasks import SOLUTIONS, asked_exam
from training.contract.artifact import write_json
from training.contract.job import Job, Outcome, Work
from training.contract.records import RecipeError, all_of
from training.contract.sandbox.answers import RIGHT_FORMS, ConfinedScores
from training.data.exams.generation import WRITTEN
from training.data.exams.grading import WORKED
from training.data.exams.settings import BenchmarkRecipe
from training.recipe.settings.evaluation import EvaluationRecipe

SUITES_FILE = "suites.json"
UNLIKELY = -1e9  # nats
# How an item's own answer is said. Tasks differ in the form that they read; the last ones are IFEval's, whose rows have
# no answer: instructions about form alone are followed by some of them.
FORMS = (
    *SOLUTIONS,
    "The answer is {}.",
    "So the answer is {}.",
    "#### {}",
    "<<A title>>\n* one\n* two\n[a] [b] [c] *d* *e*\nP.S. It is so.",
    "all of this is said in one line of small letters",
    "THIS IS A WHOLE SENTENCE IN ENGLISH AS ALL CAN SEE",
    '"It is so."',
)
WRONG = "I do not know."
OVERLONG = "and so on " * 5000


def run(job: Job, work: Work) -> Outcome:
    """Try every suite and write what its answers scored. Raise RecipeError for the suites whose scores say nothing."""
    recipe, tried = job.settings_as(EvaluationRecipe, "evaluation"), dict[str, dict[str, Any]]()
    all_of(*(partial(_tried, tried, suite, job.settings) for suite in recipe.suites))
    write_json(work.path / SUITES_FILE, tried)
    return Outcome(
        files=(SUITES_FILE,),
        metrics={"suites": len(tried), **{f"items_{name}": found["items"] for name, found in tried.items()}},
        notes={"not_right": {name: found["not_right"] for name, found in tried.items() if found["not_right"]}},
    )


def _tried(tried: dict[str, dict[str, Any]], suite: BenchmarkRecipe, settings: Mapping[str, Any]) -> None:
    tried[suite.name] = try_suite(suite, asked_exam(suite, settings).items, settings)


def try_suite(benchmark: BenchmarkRecipe, items: Sequence[ExamItem], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what answers made for a suite score, as `suites.json` has it.

    Raise RecipeError, with the suite's name and an item, if no own answer scores 1, if another kind of answer scores as
    well, or if the score of an item is not 0 or 1.
    """
    task, _ = suite_task(benchmark, items, settings, has_template=False)
    task.build_all_requests()
    requests = [list(some) for _, some in groupby(task.instances, key=lambda request: request.doc_id)]
    if benchmark.is_task:
        check_shown(benchmark, items, [{"arguments": [one.args for one in some]} for some in requests])
    answers = _written if task.OUTPUT_TYPE == WRITTEN else _likely
    shares, right = answers(_Scorer(benchmark, task, items, requests))
    _check(benchmark, items, shares, right)
    not_right = [item.id for item, value in zip(items, right, strict=True) if value < 1]
    return {"items": len(items), **{kind: fmean(values) for kind, values in shares.items()}, "not_right": not_right}


def _check(
    benchmark: BenchmarkRecipe, items: Sequence[ExamItem], shares: Mapping[str, Sequence[float]], right: Sequence[float]
) -> None:
    """Raise RecipeError if a suite's own answers score 0, or if other ones score as much."""
    if not any(value == 1 for value in right):
        shown = items[0].choices[items[0].gold] if items[0].choices else next(iter(items[0].answers), "")
        raise RecipeError(
            f"{benchmark.name}: no item's own answer scores 1; item {items[0].id}: {shown!r:.80}; name the field with"
            " the answer (answer_field), or another task or metric"
        )
    for kind, values in shares.items():
        if kind != "right" and fmean(values) >= fmean(right):
            item = items[next(n for n, value in enumerate(values) if value)]
            raise RecipeError(
                f"{benchmark.name}: {kind} answers score {fmean(values):.3g}, the items' own {fmean(right):.3g}; item"
                f" {item.id}: such an answer is right; the score says nothing: take another task or metric"
            )


class _Scorer:
    """A task with the requests of each item; it scores answers by the suite's metric."""

    def __init__(
        self,
        benchmark: BenchmarkRecipe,
        task: ConfigurableTask,
        items: Sequence[ExamItem],
        requests: Sequence[list[Instance]],
    ) -> None:
        self.task, self.items, self.requests, self._benchmark = task, items, requests, benchmark

    def written(self, answers: Mapping[int, str]) -> list[float]:
        """Return the scores of written answers, {place of the item: answer}, in their order."""
        if not answers:
            return []
        chosen = [self.requests[place][0] for place in answers]
        self.task._instances = list(chosen)
        for request, answer in zip(chosen, answers.values(), strict=True):
            request.resps, request.filtered_resps = [answer] * (request.repeats or 1), {}
        self.task.apply_filters()
        return [
            self._value({name: [said] for name, said in one.filtered_resps.items()}, one, place)
            for place, one in zip(answers, chosen, strict=True)
        ]

    def in_mathematics(self) -> list[list[str]]:
        """Return the right answer of each item as tasks that evaluate answers read it; none of other tasks."""
        scores = self.task.config.process_results
        if not isinstance(scores, ConfinedScores):
            return [[] for _ in self.items]
        targets = [str(self.task.doc_to_target(some[0].doc)) for some in self.requests]
        return [[form.format(target) for form in RIGHT_FORMS] for target in targets]

    def likely(self, place: int, results: list[tuple[float, bool]]) -> float:
        """Return the score of an item by the log-likelihoods of its requests, and whether they are greedy."""
        return self._value({"none": results}, self.requests[place][0], place)

    def _value(self, results: Mapping[str, Any], request: Instance, place: int) -> float:
        values = {
            f"{metric},{name}": value
            for name, some in results.items()
            for metric, value in self.task.process_results(request.doc, some).items()
        }
        metric, filter_name = headline(self._benchmark, values)
        value, several = values[f"{metric},{filter_name}"], (request.repeats or 1) > 1
        if isinstance(value, Sequence) or not (0 <= value <= 1 if several else value in (0, 1)):
            raise RecipeError(
                f"{self._benchmark.name}: metric {metric} gives the item {self.items[place].id} {value!r:.80}; take one"
                " of 0 and 1"
            )
        return float(value)


_Tried = tuple[dict[str, Sequence[float]], list[float]]
"""The scores of each kind of answer by item, and again those of the right answers."""


def _likely(scorer: _Scorer) -> _Tried:
    """Try the likelihoods of one item after the other: its right answer's, and another's."""
    right, wrong = list[float](), list[float]()
    for place, item in enumerate(scorer.items):
        found = _by_choice(scorer, place)
        accepted = [n for n, value in enumerate(found) if value]
        if scorer.task.OUTPUT_TYPE == "multiple_choice" and len(found) == len(item.choices):
            right.append(found[item.gold])
            wrong.append(fmean(value for n, value in enumerate(found) if n != item.gold))
        else:
            right.append(float(bool(accepted)))
            wrong.append(float(len(accepted) == len(found)))
    return {"right": right, "wrong": wrong}, right


def _by_choice(scorer: _Scorer, place: int) -> list[float]:
    """Return an item's score if its first choice is the likely one, then its second, and so on.

    Of a text that is not chosen, whether it is the likeliest or not.
    """
    if scorer.task.OUTPUT_TYPE != "multiple_choice":
        return [scorer.likely(place, [(-1.0, is_greedy)]) for is_greedy in (True, False)]
    number = len(scorer.requests[place])
    choices = len(scorer.task.doc_to_choice(scorer.requests[place][0].doc))
    return [
        scorer.likely(place, [(0.0, True) if n == likely else (UNLIKELY, False) for n in range(number)])
        for likely in range(choices)
    ]


def _written(scorer: _Scorer) -> _Tried:
    """Try the item's own answer in one form after the other, then answers that are wrong, empty and overlong."""
    items = scorer.items
    right, every = [0.0] * len(items), range(len(items))
    forms = [
        list(dict.fromkeys([form.format(said) for form in FORMS for said in (_own(one), _final(one))] + in_maths))
        for one, in_maths in zip(items, scorer.in_mathematics(), strict=True)
    ]
    for number in range(max(map(len, forms))):
        left = {place: forms[place][number] for place in every if right[place] < 1 and number < len(forms[place])}
        for place, value in zip(left, scorer.written(left), strict=True):
            right[place] = max(right[place], value)
    others = {place: _final(items[(place + 1) % len(items)]) for place in every}
    wrong = [scorer.written(one) for one in (others, dict.fromkeys(every, WRONG))]
    return {
        "right": right,
        "wrong": min(wrong, key=fmean),
        "empty": scorer.written(dict.fromkeys(every, "")),
        "overlong": scorer.written(dict.fromkeys(every, OVERLONG)),
    }, right


def _own(item: ExamItem) -> str:
    return next(iter(item.answers), "")


def _final(item: ExamItem) -> str:
    return _own(item).rpartition(WORKED)[2].strip()
