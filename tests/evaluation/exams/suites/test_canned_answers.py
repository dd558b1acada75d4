"""Suites are tried with answers made for them before anything is trained: right scores 1, and all others less."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.examples import example
from tests.jobs import job_by_hand
from tests.training.pretrain import tiny
from training.contract.records import RecipeError, write_record
from training.data.exams.settings import BenchmarkRecipe
from training.recipe.settings.evaluation import EvaluationRecipe

pytest.importorskip("torch")

from evaluation.exams.suites.canned_answers import try_suite
from evaluation.exams.tasks import asked_exam
from tests.evaluation.exams.test_code_suites import human_eval, needs_sandbox, written
from tests.evaluation.exams.test_oracles import SETTINGS, WRITTEN, suite


def tried(benchmark: BenchmarkRecipe, settings=SETTINGS) -> dict[str, object]:
    return try_suite(benchmark, asked_exam(benchmark, settings).items, settings)


@pytest.mark.data
@pytest.mark.parametrize("benchmark", example("webdocs-exams").evaluation.suites, ids=lambda one: one.name)
def test_the_shipped_tasks_score_right_answers_and_no_others(benchmark):
    found = tried(replace(benchmark, limit=12))
    assert found["right"] == 1 and found["not_right"] == []
    assert {value for kind, value in found.items() if kind in ("wrong", "empty", "overlong")} <= {0}


@pytest.mark.data
@pytest.mark.parametrize(
    "benchmark",
    [WRITTEN[0], WRITTEN[1], suite("cloze", "multiple_choice", question_field="query")],
    ids=lambda s: s.name,
)
def test_suites_with_a_kind_are_tried_as_well(benchmark):
    found = tried(replace(benchmark, limit=12))
    assert found["right"] == 1 and found["wrong"] == 0 and found["items"] == 12


@needs_sandbox
@pytest.mark.data
def test_programs_are_tried_also_where_they_are_sampled():
    warm = {"until": ["\ndef"], "do_sample": True, "temperature": 0.8}
    found = tried(human_eval(limit=2, lm_eval={"repeats": 3, "generation_kwargs": warm}, metric="pass@2"))
    assert found == {"items": 2, "right": 1, "wrong": 0, "empty": 0, "overlong": 0, "not_right": []}


def chain_of_thought(tmp_path, answer="{}", **more: object) -> BenchmarkRecipe:
    asked = [{"question": f"How many are {n} and 1?", "aside": f"words {n} that no prompt shows"} for n in range(4)]
    rows = [{**row, "answer": answer.format(n + 1)} for n, row in enumerate(asked)]
    uri = written(tmp_path / "rows.jsonl", rows)
    return BenchmarkRecipe(name="sums", uri=uri, kind="generate", **{"task": "gsm8k_cot", **more})


def test_own_answers_are_said_in_the_form_that_a_task_reads(tmp_path):
    found = tried(chain_of_thought(tmp_path, "So it is.\n#### {}"))
    assert (found["right"], found["wrong"], found["not_right"]) == (1, 0, [])


FIELDS = {"doc_to_text": "{{question}}", "output_type": "generate_until", "generation_kwargs": {"until": ["\n"]}}
MEAN = {"aggregation": "mean", "higher_is_better": True}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"answer_field": "question"}, "sums: no item's own answer scores 1; item 0: 'How many are 0 and 1?'"),
        (
            {
                "task": None,
                "lm_eval": {
                    **FIELDS,
                    "doc_to_target": "{{answer}}",
                    "metric_list": [{"metric": "exact_match", "regexes_to_ignore": [".*"], **MEAN}],
                },
            },
            "sums: wrong answers score 1, the items' own 1; item 0: such an answer is right; the score says nothing",
        ),
        (
            {
                "task": None,
                "lm_eval": {**FIELDS, "doc_to_target": "{{answer}}", "metric_list": [{"metric": "bleu", **MEAN}]},
            },
            "sums: metric bleu gives the item 0 ",
        ),
        ({"question_field": "aside"}, "sums: the exam does not show the field 'aside' of 4 of 4 items"),
    ],
    ids=["wrong field", "accepts all", "no right or wrong", "asks something else"],
)
def test_a_suite_whose_scores_say_nothing_is_refused_by_name_and_item(more, said, tmp_path):
    with pytest.raises(RecipeError) as refused:
        tried(chain_of_thought(tmp_path, **more))
    assert str(refused.value).startswith(said)


def test_choices_whose_right_one_is_another_to_the_task_are_refused(tmp_path):
    rows = [{"question": f"How many are {n} and 1?", "choices": ["1", "2"], "gold": 0, "key": 1} for n in range(3)]
    fields = {"doc_to_text": "{{question}}", "output_type": "multiple_choice", "doc_to_choice": "choices"}
    uri = written(tmp_path / "rows.jsonl", rows)
    suite = BenchmarkRecipe(name="sums", uri=uri, kind="multiple_choice", lm_eval={**fields, "doc_to_target": "gold"})
    assert tried(suite) == {"items": 3, "right": 1, "wrong": 0, "not_right": []}
    with pytest.raises(RecipeError, match="sums: no item's own answer scores 1; item 0: '1'"):
        tried(replace(suite, lm_eval={**fields, "doc_to_target": "key"}))


def test_the_stage_tells_all_suites_that_it_refuses(tmp_path):
    from evaluation.exams.suites.canned_answers import run

    good = replace(chain_of_thought(tmp_path), name="good")
    bad = [replace(good, name=name, answer_field="question") for name in ("first", "second")]

    def job(*suites):
        settings = {"evaluation": write_record(EvaluationRecipe(suites=suites))}
        return job_by_hand("check_suites", tmp_path, settings), tiny.work_in(tmp_path)

    with pytest.raises(RecipeError) as refused:
        run(*job(bad[0], good, bad[1]))
    assert [problem.partition(":")[0] for problem in refused.value.problems] == ["first", "second"]
    outcome = run(*job(good))
    assert json.loads((tmp_path / "suites.json").read_text())["good"]["right"] == 1
    assert outcome.metrics == {"suites": 1, "items_good": 4} and outcome.notes == {"not_right": {}}


def test_a_template_is_compiled_once_for_all_items_of_a_suite():
    from lm_eval.utils import apply_template

    from evaluation.exams.tasks import lm_eval

    assert [apply_template("{{a}} of {{b}}", {"a": n, "b": 3}) for n in (1, 2)] == ["1 of 3", "2 of 3"]
    once = lm_eval.utils.env.from_string("{{a}} of {{b}}")
    assert once is lm_eval.utils.env.from_string("{{a}} of {{b}}") is not lm_eval.utils.env.from_string("{{a}}")
