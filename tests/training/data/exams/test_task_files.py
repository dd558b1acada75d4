"""Tasks of one's own in lm-eval's form, checked when the recipe is read."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from assets.state.chain import CHAIN
from assets.state.recipe_folders import load_recipe
from training.contract.records import RecipeError
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_files import _fields, check_row
from training.recipe.recipe import recipe_as_data
from training.recipe.recipes import recipe_of

OWN = {"output_type": "generate_until", "doc_to_text": "{{asked_thing}} is", "doc_to_target": "colour"}
OWN |= {"metric_list": [{"metric": "exact_match"}]}


def test_all_that_is_wrong_with_tasks_of_ones_own_is_told_when_the_recipe_is_read(tmp_path):
    plain, code = tmp_path / "plain.yaml", tmp_path / "code.yaml"
    plain.write_text(json.dumps({**OWN, "output_type": "loglikelihood_rolling", "metrics": [], "include": "x.yaml"}))
    code.write_text("doc_to_text: !function os.getcwd\n")
    files = {"a": plain, "b": code, "c": tmp_path / "none.yaml"}
    suites = [{"name": n, "uri": "x.jsonl", "kind": "generate", "task_file": str(f)} for n, f in files.items()]
    suites.append({"name": "d", "uri": "x.jsonl", "kind": "generate", "lm_eval": {**OWN, "doc_to_txt": "x"}})
    suites.append({"name": "e", "uri": "x.jsonl", "kind": "generate", "lm_eval": {"output_type": "multiple_choice"}})
    data = recipe_as_data(load_recipe("kitchen"))
    data["evaluation"] |= {"suites": suites}
    data["promote"] |= {"min_scores": {}}
    data["pretrain"] |= {"watch": {}}
    with pytest.raises(RecipeError) as refused:
        recipe_of(data, CHAIN.values())
    expected = [
        f"a: {plain}: metrics: lm-eval's tasks have no such field; did you mean `metric_list`?",
        f"a: {plain}: include: lm-eval's tasks have no such field",
        "a: output_type='loglikelihood_rolling': expected multiple_choice, loglikelihood, generate_until, by which"
        " an item is right or wrong",
        f"b: {code}: not plain YAML of one task (functions are not called): code.yaml: line 1, doc_to_text: the tag",
        f"c: task_file='{tmp_path / 'none.yaml'}': no such file",
        "d: lm_eval.doc_to_txt: lm-eval's tasks have no such field; did you mean `doc_to_text`?",
        *(f"e: the task has no doc_to_{part}" for part in ("text", "target", "choice")),
    ]
    assert len(refused.value.problems) == len(expected)
    assert all(said.startswith(start) for said, start in zip(refused.value.problems, expected, strict=True))
    plain.write_text(json.dumps({**OWN, "task": "another_name", "dataset_path": "some/where"}))
    data["evaluation"] |= {"suites": suites[:1]}
    assert recipe_of(data, CHAIN.values()).evaluation.suites[0].task_file == str(plain)


def test_the_fields_of_a_task_are_those_of_lm_evals_class():
    from lm_eval.config.task import TaskConfig

    assert _fields() == {field.name for field in dataclasses.fields(TaskConfig)}


@pytest.mark.parametrize(
    ("more", "lacks"),
    [
        ({}, "doc_to_text='{{asked_thing}} is': UndefinedError: 'asked_thing' is undefined; the columns of x.jsonl"),
        ({"lm_eval": {"doc_to_text": "{{asked}} is"}}, ""),
        ({"lm_eval": {"doc_to_text": "{{asked}} is", "doc_to_choice": "{{others}}"}}, "doc_to_choice='{{others}}': "),
        ({"task_file": None, "kind": "generate", "lm_eval": {"doc_to_text": "{{other}}"}}, "doc_to_text='{{other}}': "),
        ({"task_file": None, "kind": "generate"}, ""),
    ],
)
def test_a_row_has_the_columns_that_the_templates_of_its_task_read(tmp_path, more, lacks):
    task = tmp_path / "task.yaml"
    task.write_text(json.dumps(OWN))
    suite = BenchmarkRecipe(**{"name": "a", "uri": "x.jsonl", "kind": "generate", "task_file": str(task)} | more)
    if not lacks:
        return check_row(suite, {"asked": "The sky", "colour": "blue"})
    with pytest.raises(RecipeError, match=re.escape(f"a: {lacks}")):
        check_row(suite, {"asked": "The sky", "colour": "blue"})
