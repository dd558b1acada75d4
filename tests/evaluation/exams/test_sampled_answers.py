"""Suites whose answers are sampled, several to each item: what they depend on, pass@k and majorities."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from itertools import combinations

import pytest

from benchmarks import parallel
from training.contract.records import RecipeError
from training.contract.sandbox.judged import pass_at_k
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_checks import check_suite

pytest.importorskip("torch")

from evaluation.decision.paired import by_item
from evaluation.exams.harness import run_suites
from evaluation.exams.items import ExamItem, read_exam
from evaluation.exams.local_model import LocalModel
from evaluation.exams.tasks import asked_exam
from tests.evaluation.exams.test_code_suites import WRONG, human_eval, needs_sandbox, published_mbpp, written
from tests.evaluation.exams.test_oracles import Oracle

WARM = {"until": [], "do_sample": True, "temperature": 0.9, "top_p": 0.95, "max_gen_toks": 6}
VOTE = [{"name": "vote", "filter": [{"function": "majority_vote"}, {"function": "take_first"}]}]
FIELDS = {
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{answer}}",
    "output_type": "generate_until",
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    "generation_kwargs": WARM,
    "repeats": 4,
    "filter_list": VOTE,
}
SUITE = BenchmarkRecipe(name="colours", uri="x.jsonl", kind="generate", lm_eval=FIELDS)
ITEMS = [
    ExamItem(id=f"q{n}", question=asked, answers=("blue",), row={"question": asked, "answer": "blue"})
    for n, asked in enumerate(f"which colour has the {thing}?" for thing in ("sky", "dog", "bread and the oven", "fox"))
]


def said(folder, items=ITEMS, *, batch_size: int = 4, suite: BenchmarkRecipe = SUITE) -> dict[str, list[str]]:
    (result,) = run_suites(LocalModel(folder, batch_size=batch_size), [(suite, items)], has_template=False)
    assert result.how["generation"] == {
        **{name: WARM[name] for name in ("until", "do_sample", "temperature", "top_p")},
        "max_new_tokens": 6,
        "seed": suite.lm_eval["generation_kwargs"].get("seed", 0),
        "repeats": 4,
    }
    return {sample["item"]: sample["responses"] for sample in result.samples}


def said_by_one_of(folder, rank, size):
    """Answers by one of several processes that share out the batches, of which it makes its own alone."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": 29500}
    os.environ |= {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}
    return said(folder)


def test_sampled_answers_depend_on_suite_item_and_number_and_on_nothing_else(base_folder, tmp_path):
    found = said(base_folder)
    assert all(len(set(answers)) > 1 for answers in found.values())
    assert said(base_folder, batch_size=1) == said(base_folder, batch_size=16) == found  # and asked again
    assert said(base_folder, [ITEMS[3], ITEMS[1]]) == {name: found[name] for name in ("q3", "q1")}
    assert said(base_folder, suite=replace(SUITE, name="other")) != found
    assert said(base_folder, suite=replace(SUITE, lm_eval=FIELDS | {"generation_kwargs": {**WARM, "seed": 1}})) != found
    task = partial(said_by_one_of, base_folder)
    [ranks] = parallel.in_processes([(2, task)], tmp_path, preload=["evaluation.exams.harness"])
    assert ranks == found


class Several(Oracle):
    """Gives an item's answers one after the other."""

    def __init__(self, items: list[ExamItem], answers: list[list[str]]) -> None:
        super().__init__(items, lambda _: "", lambda _: 0)
        self.answers = answers

    def generate_until(self, requests, disable_tqdm=False):
        left = [iter(some) for some in self.answers]
        return [next(left[request.doc_id]) for request in requests]


def result_of(suite: BenchmarkRecipe, answers: list[list[str]]):
    check_suite(suite)
    items = list(read_exam(suite, {}).items)
    (result,) = run_suites(Several(items, answers), [(suite, items)], has_template=False)
    return result


def test_pass_at_k_is_the_share_of_the_choices_of_k_programs_that_hold_a_right_one():
    for right in range(8):
        verdicts = [True] * right + [False] * (7 - right)
        for k in range(1, 8):
            drawn = [any(some) for some in combinations(verdicts, k)]
            assert pass_at_k(7, right, k) == pytest.approx(sum(drawn) / len(drawn))


def warm(**more: object) -> dict[str, object]:
    return {"generation_kwargs": {"until": ["\ndef"], "do_sample": True, "temperature": 0.8}, **more}


@needs_sandbox
@pytest.mark.data
def test_programs_sampled_several_times_have_pass_at_k_item_by_item():
    suite = human_eval(limit=3, lm_eval=warm(repeats=4), metric="pass@2")
    rows = [item.row for item in asked_exam(suite, {}).items]
    counts = (4, 1, 0)
    answers = [
        [row["canonical_solution"]] * right + [WRONG] * (4 - right) for row, right in zip(rows, counts, strict=True)
    ]
    result = result_of(suite, answers)
    expected = [pass_at_k(4, right, 2) for right in counts]
    assert (result.metric, result.score) == ("pass@2,create_test", pytest.approx(sum(expected) / 3))
    assert result.metrics["pass@1,create_test"] == pytest.approx((1 + 1 / 4 + 0) / 3)
    assert [sample["score"] for sample in result.samples] == expected == [1, 0.5, 0]
    assert [sample["correct"] for sample in result.samples] == [True, False, False]
    assert result.samples[1]["responses"] == answers[1] and len(result.samples[1]["extracted"]) == 4
    assert list(by_item(result.samples).values()) == expected


@needs_sandbox
def test_mbpp_whose_task_takes_the_first_program_has_pass_at_k_too(tmp_path):
    uri = written(tmp_path / "rows.jsonl", published_mbpp())
    fields = {"question_field": "text", "answer_field": "code", "id_field": "task_id", "task": "mbpp"}
    more = warm(repeats=10) | {"generation_kwargs": {"until": ["[DONE]"], "do_sample": True, "temperature": 0.8}}
    suite = BenchmarkRecipe(name="mbpp", uri=uri, kind="generate", metric="pass@10", lm_eval=more, **fields)
    answers = [[item.row["code"]] + ["pass"] * 9 for item in asked_exam(suite, {}).items]
    result = result_of(suite, answers)
    assert (result.metric, result.score) == ("pass@10", 1.0)
    assert result.metrics["pass@1"] == result.metrics["pass_at_1"] == pytest.approx(0.1)


def test_the_commonest_of_several_answers_decides_a_majority(tmp_path):
    """The first answer, the first eight and all 64 agree with lm-eval's three filters in three different ways."""
    rows = [{"question": f"How many are {n} and 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in (1, 4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite = BenchmarkRecipe(
        name="sums", uri=str(tmp_path / "rows.jsonl"), kind="generate", task="gsm8k_cot_self_consistency"
    )
    say = "So it is. The answer is {}.".format
    answers = [
        [say(9)] + [say(2)] * 5 + [say(9)] * 58,  # the first is wrong, of eight most are right, of 64 few
        [say(5)] + [say(9)] * 7 + [say(5)] * 56,  # the other way round
    ]
    for metric, right in {"score-first": [0, 1], "maj@8": [1, 0], "maj@64": [0, 1]}.items():
        result = result_of(replace(suite, metric=f"exact_match,{metric}"), answers)
        assert [sample["correct"] for sample in result.samples] == [bool(one) for one in right]
        assert result.metric == f"exact_match,{metric}" and len(result.samples[0]["responses"]) == 64


@pytest.mark.parametrize(
    ("task", "fields", "metric", "said"),
    [
        ("humaneval", {"repeats": 4}, None, "answers of the likeliest tokens would be equal; set do_sample"),
        ("humaneval_64", {}, "pass@65", "metric=pass@65 needs 65 answers to each item, repeats=64"),
        ("humaneval", {"repeats": 0}, None, "repeats=0; a number of answers to each item from 1 on"),
        ("gsm8k_cot_self_consistency", {"repeats": 4}, None, "the filter 'maj@64' would vote among 4 answers"),
        ("gsm8k_cot", warm(repeats=4), None, "filters read the first answer alone; name one with majority_vote"),
        ("arc_easy", {"repeats": 2}, None, "repeats=2 has an effect on written answers only"),
        (
            "gsm8k_cot",
            warm(repeats=4, filter_list=[{"name": "a", "filter": [{"function": "take_first_k", "k": 9}]}]),
            None,
            "the filter 'a' reads 9 answers; repeats=4",
        ),
        ("gsm8k_cot", {"generation_kwargs": {"temperature": 0.5, "top_k": 4}}, None, "top_k=4 is not done here"),
        ("gsm8k_cot", {"generation_kwargs": {"temperature": 0.5, "top_p": 0}}, None, "top_p=0; a number above 0"),
        ("gsm8k_cot", {"generation_kwargs": {"temperature": 0.5, "seed": -1}}, None, "seed=-1; a whole number from 0"),
        ("gsm8k_cot", {"generation_kwargs": {"temperature": -1}}, None, "temperature=-1; true or false, and a number"),
    ],
)
def test_answers_that_would_be_equal_or_not_all_scored_are_refused_when_the_recipe_is_read(task, fields, metric, said):
    kind = "multiple_choice" if task == "arc_easy" else "generate"
    with pytest.raises(RecipeError) as refused:
        check_suite(BenchmarkRecipe(name="a", uri="x.jsonl", kind=kind, task=task, lm_eval=fields, metric=metric))
    assert said in str(refused.value)


@pytest.mark.parametrize("task", ["humaneval_64", "humaneval_64_instruct", "gsm8k_cot_self_consistency"])
def test_tasks_of_lm_eval_that_sample_are_taken(task):
    check_suite(BenchmarkRecipe(name="a", uri="x.jsonl", kind="generate", task=task))
    check_suite(BenchmarkRecipe(name="a", uri="x.jsonl", kind="generate", task="humaneval", metric="pass@1"))
