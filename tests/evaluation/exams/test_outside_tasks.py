"""An evaluation task from the user's own environment: asked with examples, identified, and told when it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluation.exams.harness import run_suites
from evaluation.exams.items import read_exam
from evaluation.exams.local_model import LocalModel
from training.contract.parts.outside import PartFailed
from training.contract.records import RecipeError
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_files import check_own_task
from training.data.sections import outside_parts, with_parts
from training.recipe.settings.evaluation import EvaluationRecipe

pytestmark = pytest.mark.usefixtures("examples")


def suite(folder: Path, place: str = "first_word:task", settings: dict | None = None, **more) -> BenchmarkRecipe:
    for name, number in (("items", 3), ("shown", 6)):
        rows = [{"id": f"{name}-{n}", "question": f"{name} {n}?", "answer": "salt"} for n in range(number)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"uri": str(folder / "items.jsonl"), "fewshot_uri": str(folder / "shown.jsonl"), **more}
    parts = {"mine": {"from": place, **(settings or {})}}
    given |= {"lm_eval": {"generation_kwargs": {"until": ["\n"], "max_gen_toks": 8}}}  # the model's positions are few
    return BenchmarkRecipe(name="own", kind="generate", task="mine", **({"parts": parts} | given))


def result_of(benchmark: BenchmarkRecipe, folder: Path):
    model = LocalModel(folder, batch_size=4)
    (result,) = run_suites(model, [(benchmark, read_exam(benchmark, {}).items)], has_template=False)
    return result


def test_a_task_from_outside_is_asked_with_its_examples_and_settings(tmp_path, base_folder):
    benchmark = suite(tmp_path, settings={"asks": "Dish"})
    check_own_task(benchmark)
    result = result_of(benchmark, base_folder)
    assert (result.metric, result.n, result.how["task"]) == ("right", 3, "mine")
    for number, sample in enumerate(result.samples):
        assert sample["prompt"].endswith(f"\n\nDish: items {number}?\nAnswer:")
        assert sample["prompt"].count("Dish: shown") == sample["prompt"].count("Answer: salt") == 2
    recipe = EvaluationRecipe(suites=(benchmark,))
    assert outside_parts(recipe)["mine"].place == "first_word:task"
    assert set(with_parts({"evaluation": recipe})["parts"]["mine"]) == {"from", "code"}


TASK = """
from training.data.exams.task import ExamTask
def fields(settings):
    {body}
    return {{"doc_to_text": lambda document: {text}, "doc_to_target": "{{{{answer}}}}", **{more}}}
task = ExamTask(fields=fields)
"""


def test_what_fails_in_a_task_is_told_under_its_name(tmp_path, base_folder, write):
    def made(body="pass", text="document['question']", more="{}") -> BenchmarkRecipe:
        return suite(tmp_path, f"{write(TASK.format(body=body, text=text, more=more))}:task")

    with pytest.raises(PartFailed, match=r"task mine .*: ValueError: none"):
        made(body="raise ValueError('none')")
    for more, said in (
        ("{'doc_to_txt': 1}", r"task mine \(own_parts_\d+:task\): doc_to_txt: lm-eval's tasks have no such field"),
        ("{'dataset_path': 'x'}", r"task mine \(.*\): dataset_path is decided by the suite; leave it out"),
        ("{'output_type': 'essay'}", r"output_type='essay': expected"),
    ):
        with pytest.raises(RecipeError, match=said):
            check_own_task(made(more=more))
    with pytest.raises(PartFailed, match=r"doc_to_text: KeyError: 'no'"):
        result_of(made(text="document['no']"), base_folder)
    with pytest.raises(PartFailed, match=r"task mine: doc_to_text returned 3"):
        result_of(made(text="3"), base_folder)
    scored = "{'process_results': lambda document, results: {'good': 0.5}, 'metric_list': [{'metric': 'good'}]}"
    scored = scored.replace("'good'}]", "'good', 'aggregation': 'mean', 'higher_is_better': True}]")
    with pytest.raises(RecipeError, match=r"metric good .* 0\.5"):
        result_of(made(more=scored), base_folder)
