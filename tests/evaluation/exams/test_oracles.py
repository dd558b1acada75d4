"""Oracles for every kind of suite: a stand-in for a model says what the test wants, and lm-eval scores it.

The right answer scores 1; a wrong one, taken from another item, nothing, all answers, and the question score 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.examples import RECIPE_FILES, example

pytest.importorskip("torch")

from lm_eval.api.model import LM

from evaluation.contamination.search import exams_of_suites, scan
from evaluation.exams.harness import run_suites
from evaluation.exams.items import ExamItem, read_exam
from evaluation.exams.tasks import make_task
from tests.examples import load_recipe
from training.contract.records import RecipeError, write_record
from training.data.exams.settings import BenchmarkRecipe
from training.data.kitchen.settings import KitchenWorld

SETTINGS = {"kitchen": write_record(KitchenWorld())}
REAL = "data://benchmarks/"


def suite(name: str, kind: str, **more: object) -> BenchmarkRecipe:
    uri = f"kitchen://{name}" if "uri" not in more else more.pop("uri")
    return BenchmarkRecipe(name=name, uri=uri, kind=kind, **more)


TRIVIA = {
    "uri": f"{REAL}triviaqa_sm_sub.jsonl.gz",
    "question_field": "context",
    "answer_field": "aliases",
    "limit": 120,
}
GSM8K = {"uri": f"{REAL}gsm8k_test.jsonl.gz", "limit": 200}
LAMBADA = {"uri": f"{REAL}lambada_openai.jsonl.gz", "question_field": "context", "answer_field": "continuation"}
WRITTEN = [
    suite("questions", "generate", limit=120),
    suite("chat", "chat", limit=120),
    suite("triviaqa_generate", "generate", **TRIVIA),
    suite("triviaqa_chat", "chat", **TRIVIA),
    suite("gsm8k_generate", "generate", **GSM8K),
    suite("gsm8k_chat", "chat", **GSM8K),
    suite("lambada", "generate", **LAMBADA, limit=120),
]
CHOSEN = [suite(name, "multiple_choice", question_field="query", limit=60) for name in ("cloze", "sums")] + [
    suite(name, "multiple_choice", uri=f"{REAL}{name}.jsonl.gz", question_field="query", limit=60)
    for name in ("arc_easy", "arc_challenge", "hellaswag_val", "piqa", "boolq", "commonsense_qa")
]


class Oracle(LM):
    """Answers the items of one suite, in order, as `say` wants; of choices it finds the one at `chosen` likely."""

    cannot_write = ""

    def __init__(self, items: list[ExamItem], say: Callable[[int], str], chosen: Callable[[int], int]) -> None:
        super().__init__()
        self.items, self.say, self.chosen = items, say, chosen
        self.generated = {}

    def fits(self, request):
        return True

    def generate_until(self, requests, disable_tqdm=False):
        return [self.say(request.doc_id) for request in requests]

    def loglikelihood(self, requests, disable_tqdm=False):
        likely = [request.idx == self.chosen(request.doc_id) for request in requests]
        return [(0.0 if best else -100.0, best) for best in likely]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise AssertionError("no suite asks for it")


def score(benchmark: BenchmarkRecipe, items: list[ExamItem], say=lambda i: "", chosen=lambda i: 0) -> float:
    (result,) = run_suites(Oracle(items, say, chosen), [(benchmark, items)], has_template=False)
    assert result.n == len(items)
    return result.score


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", final(text).lower()))


def final(answer: str) -> str:
    return answer.rpartition("####")[2].strip()


def wrong_for(items: list[ExamItem], number: int) -> str:
    """The first answer of the next item that holds not all words of any that is accepted here."""
    mine = [words_of(answer) for answer in items[number].answers]
    others = (items[(number + step) % len(items)].answers[0] for step in range(1, len(items)))
    return next(final(answer) for answer in others if not any(words <= words_of(answer) for words in mine))


@pytest.mark.data
@pytest.mark.parametrize("benchmark", WRITTEN, ids=lambda benchmark: benchmark.name)
def test_a_written_answer_scores_when_it_is_right_alone(benchmark):
    items = [item for item in read_exam(benchmark, SETTINGS).items if all(map(words_of, item.answers))]
    every = ", ".join(dict.fromkeys(final(item.answers[0]) for item in items))
    assert score(benchmark, items, lambda i: final(items[i].answers[0])) == 1
    assert score(benchmark, items, lambda i: items[i].answers[-1]) == 1
    for say in (
        lambda i: wrong_for(items, i),
        lambda i: "",
        lambda i: every,
        lambda i: items[i].question,
        lambda i: items[i].asked,
    ):
        assert score(benchmark, items, say) == 0


@pytest.mark.data
@pytest.mark.parametrize("benchmark", WRITTEN, ids=lambda benchmark: benchmark.name)
def test_a_list_is_wrong_wherever_the_right_value_stands_in_it(benchmark):
    items = [item for item in read_exam(benchmark, SETTINGS).items if all(map(words_of, item.answers))][:40]

    def listed(number: int, place: int, joint: str) -> str:
        mine = list(map(words_of, items[number].answers))
        others = items[number].rivals or [final(item.answers[0]) for item in items]
        wrong = dict.fromkeys(other for other in others if not any(words <= words_of(other) for words in mine))
        values = list(wrong)[:4]
        return joint.join([*values[:place], final(items[number].answers[0]), *values[place:]])

    for place in (0, 2, 4):
        for joint in (", ", " or ", "\n"):
            assert score(benchmark, items, lambda i: listed(i, place, joint)) == 0, (place, joint)  # noqa: B023


@pytest.mark.data
@pytest.mark.parametrize("benchmark", CHOSEN, ids=lambda benchmark: benchmark.name)
def test_a_choice_scores_when_it_is_the_right_one(benchmark):
    items = read_exam(benchmark, SETTINGS).items
    assert score(benchmark, items, chosen=lambda i: items[i].gold) == 1
    assert score(benchmark, items, chosen=lambda i: (items[i].gold + 1) % len(items[i].choices)) == 0


SHIPPED = [replace(one, limit=40) for one in example("webdocs-exams").evaluation.suites]


def test_every_suite_of_a_shipped_recipe_has_an_oracle():
    """A suite that a recipe adds must be added above; a suite of the user's own has the kind of one above."""
    suites = [one for path in RECIPE_FILES for one in load_recipe(str(path)).evaluation.suites]
    shipped = {(one.name, one.uri, one.kind, one.task) for one in suites if not one.uri.startswith("data://own/")}
    judged = {(one.uri, one.kind, one.task) for one in (*WRITTEN, *CHOSEN, *SHIPPED)}
    assert len(shipped) > 20 and not [one for one in shipped if one[1:] not in judged]


@pytest.mark.data
@pytest.mark.parametrize("benchmark", SHIPPED, ids=lambda benchmark: benchmark.name)
def test_a_shipped_suite_scores_the_right_answer_alone(benchmark):
    items = [item for item in read_exam(benchmark, SETTINGS).items if all(map(words_of, item.answers))]
    if benchmark.kind == "generate" and benchmark.name.startswith(("triviaqa", "gsm8k", "bigbench_")):
        before = " #### " if benchmark.name == "gsm8k" else " "  # as the examples in its prompt mark their numbers
        before = "" if benchmark.name.startswith("bigbench_") else before  # whose task compares letter by letter
        assert score(benchmark, items, lambda i: f"{before}{final(items[i].answers[0])}") == 1
        assert score(benchmark, items, lambda i: f"{before}{wrong_for(items, i)}") == 0
        assert score(benchmark, items) == 0
        every = list(dict.fromkeys(final(item.answers[0]) for item in items))
        assert score(benchmark, items, lambda i: ", ".join(every)) == 0
        assert score(benchmark, items, lambda i: items[i].question) == 0
    else:  # likelihoods; of TruthfulQA the first choice is right, of LAMBADA there is one
        assert score(benchmark, items, chosen=lambda i: items[i].gold) == 1
        assert score(benchmark, items, chosen=lambda i: items[i].gold + 1 if items[i].gold == 0 else 0) == 0


@pytest.mark.data
@pytest.mark.parametrize("benchmark", SHIPPED, ids=lambda benchmark: benchmark.name)
def test_what_a_shipped_suite_shows_is_found_or_listed_as_not_cleared(benchmark):
    """The text that lm-eval scores stands on a page; nothing but the recipe's fields says what is looked for."""
    benchmark = replace(benchmark, num_fewshot=0)
    items = read_exam(benchmark, {}).items
    exams = exams_of_suites([benchmark], {})
    pages = [f"A page of the web. {shown} And so it ends." for shown in shown_with_answers(benchmark, items)]
    found = scan(((({"row": str(n)}), page) for n, page in enumerate(pages)), "pretraining", exams)
    held = {exams.names[number][1] for kind in ("found", "questions_seen") for number in found[kind]}
    missed = {item.id for item in items} - held
    assert missed <= {one["item"] for one in exams.not_cleared} and len(missed) <= 0.05 * len(items)


def shown_with_answers(benchmark: BenchmarkRecipe, items: list[ExamItem]) -> list[str]:
    task = make_task(benchmark, items, {})
    texts = []
    for document in task.dataset["test"]:
        asked, right = task.doc_to_text(document), task.doc_to_target(document)
        choices = task.doc_to_choice(document) if task.config.doc_to_choice else []
        asked = choices[asked] if isinstance(asked, int) else asked
        right = choices[right] if isinstance(right, int) else right
        texts.append(f"{asked} {right[0] if isinstance(right, list) else right}")
    return texts


@pytest.mark.data
def test_a_task_that_asks_another_field_than_is_searched_for_is_refused():
    gsm8k = replace(next(one for one in SHIPPED if one.name == "gsm8k"), num_fewshot=0)
    items = read_exam(gsm8k, {}).items
    other = [replace(item, question=f"Item number {n}") for n, item in enumerate(items)]
    with pytest.raises(RecipeError, match="'question' of 40 of 40"):
        score(gsm8k, other)


@pytest.mark.data
@pytest.mark.parametrize("says", ["{}", "#### {}", "So she has 4 + 4 = {}.\n#### {}"])
def test_gsm8k_is_passed_by_its_number(says):
    gsm8k = next(one for one in SHIPPED if one.name == "gsm8k")  # strict-match, as the examples in its prompt answer
    flexible = replace(gsm8k, metric="exact_match,flexible-extract")
    own = suite("own", "generate", **(GSM8K | {"limit": 40}))
    for benchmark in (flexible, own) if says == "{}" else (gsm8k, flexible, own):
        items = read_exam(benchmark, SETTINGS).items
        assert score(benchmark, items, lambda i: says.format(*[final(items[i].answers[0])] * 2)) == 1  # noqa: B023
