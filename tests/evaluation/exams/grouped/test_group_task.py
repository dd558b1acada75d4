"""A group of lm-eval as a suite: each row is asked and scored by its own task, as lm-eval itself does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from training.contract.records import RecipeError
from training.data.exams.grouped.task_groups import members
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_checks import check_suite

pytest.importorskip("torch")

from lm_eval.api.metrics import aggregate_subtask_metrics
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM

from evaluation.exams.harness import run_suites
from evaluation.exams.local_model import LocalModel
from evaluation.exams.suites.canned_answers import try_suite
from evaluation.exams.tasks import FEWSHOT_SEED, LmEvalTask, asked_exam, named_config

SUBJECTS = ("anatomy", "anatomy", "virology", "astronomy", "anatomy")


def mmlu(tmp_path: Path, column: str = "subject", said: tuple[str, ...] = SUBJECTS, **more: object) -> BenchmarkRecipe:
    choices = ["two", "the third", "none of these", "ten"]
    rows = [
        {column: one, "question": f"How many are in the {one} of case {n}?", "choices": choices, "answer": n % 4}
        for n, one in enumerate(said)
    ]
    path = tmp_path / f"{column}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = {"name": "all_subjects", "kind": "multiple_choice", "gold_field": "answer", "task": "mmlu"}
    return BenchmarkRecipe(uri=str(path), **(named | more))


def test_a_group_has_the_tasks_that_lm_eval_gives_it():
    assert len(members("mmlu")) == 57 and members("mmlu")[:2] == ("mmlu_abstract_algebra", "mmlu_anatomy")
    assert len(members("bbh_cot_fewshot")) == 27  # by name, where MMLU's are found by tags of groups of groups
    assert members("mmlu_anatomy") == () == members(None)


@pytest.mark.parametrize("shots", [0, 1])
def test_a_group_equals_its_tasks_one_by_one(tmp_path, base_folder, shots):
    asked = {"num_fewshot": shots, "fewshot_uri": mmlu(tmp_path, "dev").uri} if shots else {}
    suite = mmlu(tmp_path, **asked)
    check_suite(suite)
    items = asked_exam(suite, {}).items
    model = LocalModel(base_folder, batch_size=4)
    model.max_length = 1024  # its positions are rotations, which do not end
    (result,) = run_suites(model, [(suite, items)], has_template=False)
    scores, sizes, mine = [], [], {one["item"]: one for one in result.samples}
    for subject in ("anatomy", "astronomy", "virology"):
        some = [item for item in items if item.row["subject"] == subject]
        shown = {"test_split": "test", "fewshot_split": "fewshot" if shots else None, "num_fewshot": shots}
        dev = [item.row for item in some]
        task = LmEvalTask(named_config(f"mmlu_{subject}") | shown, {"test": dev, **({"fewshot": dev} if shots else {})})
        task.set_fewshot_seed(FEWSHOT_SEED)
        stock = HFLM(pretrained=str(base_folder), device="cpu", batch_size=1, max_length=1024)
        outcome = evaluate(lm=stock, task_dict={"tasks": {"own": task}, "groups": {}}, bootstrap_iters=0)
        for item, record in zip(some, outcome["samples"]["own"], strict=True):
            assert mine[item.id]["prompt"] == record["arguments"][0][0]
            assert mine[item.id]["log_likelihoods"] == pytest.approx(
                [said[0] for said in record["filtered_resps"]], abs=2e-3
            )
            assert mine[item.id]["correct"] == bool(record["acc"])
        assert result.kinds[f"mmlu_{subject}"]["score"] == outcome["results"]["own"]["acc,none"]
        scores.append(outcome["results"]["own"]["acc,none"])
        sizes.append(len(some))
    assert "about virology" in mine[items[2].id]["prompt"] and "about anatomy" in mine[items[0].id]["prompt"]
    assert result.score == pytest.approx(aggregate_subtask_metrics(scores, sizes, weight_by_size=True))


def test_a_row_may_name_its_task_by_its_whole_name_or_with_blanks(tmp_path):
    said = ("mmlu_anatomy", "college physics", "High School Physics".lower())
    kinds = [item.kind for item in asked_exam(mmlu(tmp_path, "of", said), {}).items]
    assert kinds == ["mmlu_anatomy", "mmlu_college_physics", "mmlu_high_school_physics"]


def test_written_answers_of_a_group_are_scored_by_the_filters_of_their_tasks(tmp_path):
    rows = [
        {"task": "boolean_expressions", "input": f"not ( {value} ) and case {n} is", "target": str(not value)}
        for n, value in enumerate((True, False, True))
    ] + [{"task": "word_sorting", "input": f"Sort {n}: b a", "target": f"a b {n}"} for n in range(3)]
    path = tmp_path / "bbh.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {"question_field": "input", "answer_field": "target", "task": "bbh_cot_fewshot"}
    suite = BenchmarkRecipe(name="bbh", uri=str(path), kind="generate", **fields)
    items = asked_exam(suite, {}).items
    found = try_suite(suite, items, {})
    assert (found["right"], found["empty"], found["overlong"]) == (1, 0, 0) and found["wrong"] < 1


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"task": "blimp"}, "the group's score is the mean of its tasks"),
        ({"task": "minerva_math"}, "the tasks of the group evaluate answers; name one"),
        ({"task": "mmlu_sciences"}, "lm-eval has no task of that name"),
        ({"task": "flan_held_in"}, "the group changes fields of its tasks"),
    ],
)
def test_a_group_whose_score_is_no_mean_over_items_is_refused(tmp_path, more, problem):
    with pytest.raises(RecipeError, match=problem):
        check_suite(mmlu(tmp_path, **more))


def test_rows_that_name_no_task_of_the_group_are_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"a group of 57 tasks, and no column of .* names one in every row, such as"):
        asked_exam(mmlu(tmp_path, "of", ("anatomy", "physics")), {})
