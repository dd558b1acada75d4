"""Suites whose scoring evaluates answers: lm-eval's tasks in mathematics, called in the sandbox item by item."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

import lm_eval

from evaluation.exams import tasks
from evaluation.exams.items import read_exam
from evaluation.exams.suites.canned_answers import try_suite
from evaluation.exams.tasks import make_task
from tests.evaluation.exams.test_code_suites import needs_sandbox, scored, written
from tests.training.contract.sandbox.test_answers import DOCUMENTS, HARM, UTILS
from training.contract.records import RecipeError
from training.contract.sandbox.answers import Function
from training.data.exams import task_checks
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_checks import check_suite, confined_function

RUNTIME = "antlr4-python3-runtime"
HAS_MATHS = importlib.util.find_spec("math_verify") and importlib.metadata.version(RUNTIME).startswith("4.11")
needs_maths = pytest.mark.skipif(not HAS_MATHS, reason="lm-eval[math] is not installed")
FIELDS = {"doc_to_text": "{{problem}}", "doc_to_target": "{{answer}}", "output_type": "generate_until"}
METRICS = {"metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]}


def rows(folder: str) -> list[dict[str, str]]:
    """Rows in the published form: the examples that a task has itself."""
    module = named(folder)
    return [
        {"problem": one["problem"], "solution": one["solution"], "level": "Level 5"}
        for one in module.list_fewshot_samples()[:3]
    ]


def named(folder: str):
    path = Path(lm_eval.__path__[0]) / "tasks" / folder / "utils.py"
    spec = importlib.util.spec_from_file_location(f"stock_{folder.replace('/', '_')}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def suite(tmp_path: Path, rows: list[dict[str, str]], **more: object) -> BenchmarkRecipe:
    uri = written(tmp_path / "rows.jsonl", rows)
    fields = {"uri": uri, "question_field": "problem", "answer_field": "solution"} | more
    return BenchmarkRecipe(name="maths", kind="generate", **fields)


@needs_sandbox
@needs_maths
@pytest.mark.parametrize(
    ("task", "folder"),
    [
        ("minerva_math_algebra", "minerva_math"),
        ("leaderboard_math_algebra_hard", "leaderboard/math"),
        ("putnam_axiom_original", "putnam_axiom"),
    ],
)
def test_scores_are_those_of_lm_eval_item_by_item(task, folder, tmp_path):
    benchmark, stock = suite(tmp_path, rows(folder), task=task), named(folder)
    check_suite(benchmark)
    items = read_exam(benchmark, {}).items
    assert try_suite(benchmark, items, {})["right"] == 1
    made = make_task(benchmark, items, {})
    confined = made.config.process_results
    said = [form.format(one) for _, one in confined.documents for form in ("$\\boxed{{{}}}$", "It is ${}$.")]
    said += [f"Final Answer: The final answer is ${one}$. I hope it is correct." for _, one in confined.documents]
    said += ["", "24", "$48/2$", "\\boxed{", "__import__('os').system('exit')", "$x = 16$ or $16.0$"]
    pairs = [(document, [one]) for document, _ in confined.documents[:2] for one in said]
    confined.ahead(pairs, lambda given: tasks.scored(confined.function, confined.metrics, given))
    own = [stock.process_results(document, results) for document, results in pairs]
    assert [confined(*pair) for pair in pairs] == own
    assert 2 <= sum(one["exact_match"] for one in own) < len(own) / 2


@needs_sandbox
def test_a_suite_that_evaluates_answers_is_scored_in_the_sandbox(tmp_path, monkeypatch):
    (tmp_path / "utils.py").write_text(UTILS)
    files = {"lm_eval/tasks/own/utils.py": str(tmp_path / "utils.py")}
    function = Function(module="lm_eval.tasks.own.utils", name="process_results", files=files)
    monkeypatch.setattr(tasks, "confined_function", lambda _: function)
    benchmark = suite(tmp_path, DOCUMENTS, answer_field="answer", lm_eval=FIELDS | METRICS)
    hostile = HARM.format(tmp_path / "pwned")
    answers = ["0", "2*3", "7", hostile, "x"]
    result = scored(benchmark, lambda _, number: answers[number])
    assert [sample["correct"] for sample in result.samples] == [True, True, False, False, True]
    assert (result.score, result.metric) == (0.6, "exact_match") and not (tmp_path / "pwned").exists()


def test_a_package_that_the_sandbox_lacks_is_named(tmp_path):
    path = tmp_path / "utils.py"
    path.write_text(
        "import sympy, numpy\nif TYPE_CHECKING:\n    import pandas\ndef f():\n    import subprocess, json\n"
    )
    assert task_checks._lacking([path]) == {"numpy", "subprocess"}


def test_functions_outside_lm_eval_are_not_shown_in_the_sandbox(tmp_path):
    (tmp_path / "utils.py").write_text(UTILS)
    named = {**FIELDS, **METRICS, "process_results": str(tmp_path / "utils.process_results")}
    benchmark = suite(tmp_path, DOCUMENTS, answer_field="answer", lm_eval=named)
    assert confined_function(benchmark) is None
    with pytest.raises(RecipeError, match=re.escape("evaluates texts (sympy), outside the sandbox")):
        check_suite(benchmark)


def test_the_functions_of_tasks_that_evaluate_answers_are_known_by_their_modules(tmp_path):
    found = confined_function(suite(tmp_path, DOCUMENTS, task="minerva_math_algebra"))
    assert (found.module, found.name) == ("lm_eval.tasks.minerva_math.utils", "process_results")
    assert list(found.files) == ["lm_eval/tasks/minerva_math/utils.py"]
    assert confined_function(suite(tmp_path, DOCUMENTS, task="gsm8k_cot")) is None


@pytest.mark.skipif(bool(HAS_MATHS), reason="lm-eval[math] is installed")
def test_what_a_task_in_mathematics_needs_is_said_when_the_recipe_is_read(tmp_path):
    with pytest.raises(RecipeError) as refused:
        check_suite(suite(tmp_path, DOCUMENTS, task="putnam_axiom_original"))
    version = importlib.metadata.version(RUNTIME)
    assert str(refused.value) == (
        f"maths: task='putnam_axiom_original' needs {RUNTIME} 4.11, and {version} is installed;"
        " pip install 'lm-eval[math]'"
    )
