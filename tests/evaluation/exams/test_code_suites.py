"""Suites of programs as lm-eval's tasks, judged in the sandbox: published solutions score 1, others less."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

import lm_eval

from benchmarks import parallel
from evaluation.exams import tasks
from evaluation.exams.harness import SuiteResult, run_suites
from evaluation.exams.items import read_exam
from evaluation.exams.tasks import asked_exam, make_task
from tests.evaluation.exams.test_oracles import Oracle
from training.contract.records import RecipeError
from training.contract.sandbox import judged
from training.contract.sandbox.code_eval import CodeEval
from training.contract.sandbox.confined import why_unavailable
from training.contract.sandbox.judged import Program
from training.data.exams import task_checks
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_checks import check_suite
from training.data.sources import read_rows

needs_sandbox = pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable())
WRONG = "    return None\n"
SENTENCES = {
    "de": "Das ist ein ganzer deutscher Satz, wie jeder sehen kann.",
    "it": "Questa è una frase intera in italiano, come tutti possono vedere.",
    "pt": "Esta é uma frase inteira em português, como todos podem ver.",
    "ru": "Это целое предложение на русском языке, как каждый видит.",
}


def human_eval(**more: object) -> BenchmarkRecipe:
    fields = {"question_field": "prompt", "answer_field": "canonical_solution", "id_field": "task_id", "limit": 6}
    fields |= {"task": "humaneval", "uri": "data://benchmarks/human_eval.jsonl.gz"}
    return BenchmarkRecipe(name="code", kind="generate", **{**fields, **more})


def scored(suite: BenchmarkRecipe, say: Callable[[dict, int], str]) -> SuiteResult:
    check_suite(suite)
    items = list(read_exam(suite, {}).items)
    oracle = Oracle(items, lambda number: say(items[number].row, number), lambda _: 0)
    (result,) = run_suites(oracle, [(suite, items)], has_template=False)
    return result


@needs_sandbox
@pytest.mark.data
def test_published_solutions_of_human_eval_score_one_and_others_less():
    suite = human_eval()
    result = scored(suite, lambda row, _: row["canonical_solution"])
    assert (result.score, result.metric, result.n) == (1.0, "pass@1,create_test", 6)
    assert result.samples[0]["extracted"].startswith("from typing import List")
    mixed = scored(suite, lambda row, number: row["canonical_solution"] if number % 2 else WRONG)
    assert [sample["correct"] for sample in mixed.samples] == [False, True] * 3
    for said in ("", WRONG, "    import os; os._exit(0)\n", "    return 0\n" * 5000):
        assert scored(suite, lambda row, _, said=said: said).score < 1


@needs_sandbox
@pytest.mark.data
def test_the_form_for_chat_models_cuts_the_program_from_its_fence():
    suite = human_eval(task="humaneval_instruct", limit=3)
    assert scored(suite, lambda row, _: row["canonical_solution"] + "```\nDone.").score == 1


def published_mbpp() -> list[dict]:
    """The three rows with solutions that lm-eval shows as examples."""
    tree = ast.parse((Path(lm_eval.__path__[0]) / "tasks" / "mbpp" / "utils.py").read_text("utf-8"))
    (function,) = (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "list_fewshot_samples")
    rows = ast.literal_eval(function.body[-1].value)
    return [{name: value for name, value in row.items() if name != "is_fewshot"} for row in rows]


@needs_sandbox
def test_mbpp_is_asked_with_the_examples_that_the_task_has(tmp_path):
    rows = [json.dumps(row) + "\n" for row in published_mbpp()]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    suite = BenchmarkRecipe(
        name="mbpp",
        uri=str(tmp_path / "rows.jsonl"),
        kind="generate",
        question_field="text",
        answer_field="code",
        id_field="task_id",
        task="mbpp",
    )
    result = scored(suite, lambda row, _: row["code"])
    assert (result.score, result.metric, result.how["num_fewshot"]) == (1.0, "pass_at_1", 3)
    assert all(sample["prompt"].count("[DONE]") == 3 for sample in result.samples)
    assert scored(suite, lambda row, _: row["code"].replace("==", "!=").replace("nlargest", "nsmallest")).score < 1
    assert scored(suite, lambda row, _: row["code"] + "\nraise SystemExit").score == 0


def written(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@needs_sandbox
@pytest.mark.data
@pytest.mark.parametrize("task", ["humaneval", "humaneval_instruct"])
def test_an_item_that_its_own_solution_fails_or_nothing_passes_is_not_asked(task, tmp_path):
    rows = list(read_rows("data://benchmarks/human_eval.jsonl.gz"))[:4]
    rows[1]["canonical_solution"] = WRONG
    rows[2]["test"] = "def check(candidate):\n    pass\n"
    suite = human_eval(task=task, uri=written(tmp_path / "rows.jsonl", rows))
    exam = asked_exam(suite, {})
    assert [item.id for item in exam.items] == [rows[0]["task_id"], rows[3]["task_id"]]
    assert [(said["row"], said["item"]) for said in exam.refused] == [(n, rows[n]["task_id"]) for n in (1, 2)]
    first, second = (said["reason"] for said in exam.refused)
    assert first.startswith("its own answer does not pass its test: AssertionError")
    assert second == "an empty answer passes its test"


@needs_sandbox
@pytest.mark.data
def test_a_suite_of_programs_whose_answers_are_no_solutions_is_refused():
    said = (
        "item HumanEval/0: its own answer does not pass its test: .*; the field 'entry_point' .answer_field. must hold"
    )
    with pytest.raises(ValueError, match=said):
        asked_exam(human_eval(answer_field="entry_point", limit=2), {})


@needs_sandbox
@pytest.mark.parametrize("task", ["mbpp", "mbpp_instruct"])
def test_solutions_are_tried_in_the_form_that_the_task_reads(task, tmp_path):
    """`mbpp_instruct` reads a program only from a fence."""
    suite = BenchmarkRecipe(
        name="mbpp",
        uri=written(tmp_path / "rows.jsonl", published_mbpp()),
        kind="generate",
        question_field="text",
        answer_field="code",
        id_field="task_id",
        task=task,
    )
    exam = asked_exam(suite, {})
    assert (len(exam.items), exam.refused) == (3, [])


@needs_sandbox
def test_pass_at_k_has_the_form_of_code_eval():
    right, wrong = "def f(): return 1", "def f(): return 2"
    codes = [[right, wrong, wrong, wrong], [right, right, wrong, wrong]]
    shares, results = CodeEval().compute(references=["assert f() == 1"] * 2, predictions=codes, k=[1, 2, 9])
    assert shares == {"pass@1": pytest.approx((1 / 4 + 2 / 4) / 2), "pass@2": pytest.approx((1 / 2 + 5 / 6) / 2)}
    assert [said["passed"] for _, said in results[0]] == [True, False, False, False]
    assert results[1][0] == (0, {"task_id": 1, "passed": True, "result": "passed", "completion_id": 0})


@needs_sandbox
def test_programs_that_were_judged_ahead_are_not_run_again(monkeypatch):
    metric, program = CodeEval(), Program(code="def f(): return 1", test="assert f() == 1")
    metric.judge_ahead([program])
    monkeypatch.setattr(judged, "check_sandbox", lambda _: pytest.fail("it runs again"))
    metric.known[Program(code="x", test="y")] = metric.known[program]
    assert metric.known[program].passed


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("cruxeval_output", "runs code that the model writes outside the sandbox"),
        ("longproc_pseudo_to_code_2k", "runs code that the model writes outside the sandbox"),
        ("prompt_robustness_math_algebra", "scores answers by code that evaluates texts ("),
    ],
)
def test_a_task_that_would_run_an_answer_elsewhere_is_refused_when_the_recipe_is_read(task, said):
    suite = BenchmarkRecipe(name="a", uri="x.jsonl", kind="generate", task=task, num_fewshot=0)
    with pytest.raises(RecipeError, match=re.escape(said)):
        check_suite(suite)
    with pytest.raises(RecipeError, match=re.escape(said)):  # a machine without lm-eval may have read the recipe
        make_task(suite, [], {})


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(x):\n    return(eval)(x)\n", {"eval"}),
        ("run = exec\n", {"exec"}),
        ("def f(x):\n    from sympy.parsing import sympy_parser as p\n    return p.parse_expr(x)\n", {"sympy"}),
        ("try:\n    from math_verify import parse\nexcept ImportError:\n    parse = None\n", {"math_verify"}),
        ("import re\nx = re.compile('eval(').match\nmodel.eval()\n", set()),
    ],
)
def test_what_evaluates_texts_is_found_in_whatever_way_it_is_called(source, found):
    assert task_checks._evaluators(source.encode()) == found


def test_filters_and_modules_of_other_folders_are_looked_at_as_well(tmp_path):
    (tmp_path / "utils.py").write_text("from lm_eval.tasks.minerva_math.utils import is_equiv\n")
    functions = [{"function": "custom", "filter_fn": str(tmp_path / "utils.cut")}]
    sources = list(task_checks._sources({"filter_list": [{"name": "cut", "filter": functions}]}))
    assert len(sources) == 2 and task_checks._evaluators(sources[0]) == set()
    assert task_checks._evaluators(sources[1]) == {"math_verify", "sympy"}


def test_tasks_that_compare_texts_or_load_code_eval_are_none_of_these():
    for task in ("gsm8k_cot", "humaneval", "humaneval_plus", "mbpp", "mbpp_plus", "triviaqa"):
        check_suite(BenchmarkRecipe(name="a", uri="x.jsonl", kind="generate", task=task))
    with pytest.raises(RecipeError, match="num_fewshot=9; the task has 8 examples of its own"):
        check_suite(BenchmarkRecipe(name="a", uri="x.jsonl", kind="generate", task="gsm8k_cot", num_fewshot=9))


def judged_by_one_of(programs: list[Program], rank: int, size: int) -> tuple[list[bool], list[int]]:
    """The verdicts that one of several processes has, and how many programs each process ran."""
    import torch.distributed as dist

    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": 29500}
    os.environ |= {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}
    ran, counted, judge = list[int](), [0] * size, tasks.judged
    tasks.judged = lambda some, **more: ran.append(len(some)) or judge(some, **more)
    verdicts = tasks._shared(tasks.judged, programs)
    dist.all_gather_object(counted, sum(ran))
    return [one.passed for one in verdicts], counted


@needs_sandbox
def test_processes_share_out_the_programs_of_a_suite(tmp_path):
    programs = [Program(code=f"def f(): return {n}", test=f"assert f() == {n % 3}") for n in range(5)]
    task = partial(judged_by_one_of, programs)
    [[verdicts, ran]] = parallel.in_processes([(2, task)], tmp_path, preload=["evaluation.exams.tasks"])
    assert verdicts == [one.passed for one in tasks._shared(tasks.judged, programs)] == [True] * 3 + [False] * 2
    assert ran == [3, 2]


@needs_sandbox
@pytest.mark.data
def test_a_test_that_imports_what_the_sandbox_lacks_is_refused_before_the_model_is_asked():
    suite = human_eval(task="humaneval_plus", limit=1)
    (item,) = read_exam(suite, {}).items
    item.row["test"] = "import numpy as np\n" + item.row["test"]  # as the rows of evalplus have it
    with pytest.raises(ValueError, match="a test imports numpy; the sandbox has Python's own library only"):
        make_task(suite, [item], {})


@pytest.mark.data
def test_without_a_sandbox_the_suite_is_refused_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    why_unavailable.cache_clear()
    try:
        with pytest.raises(ValueError, match="install Debian's package bubblewrap"):
            scored(human_eval(), lambda row, _: row["canonical_solution"])
    finally:
        why_unavailable.cache_clear()


def without(monkeypatch, *names: str) -> None:
    """Let these packages be not installed, whether they are or not; and all others be."""
    find = task_checks.importlib.util.find_spec
    found = lambda name, of=None: None if name in names else find(name, of) or json.__spec__  # noqa: E731
    monkeypatch.setattr(task_checks.importlib.util, "find_spec", found)


def ifeval(**more: object) -> BenchmarkRecipe:
    fields = {"question_field": "prompt", "answer_field": "instruction_id_list", "id_field": "key"}
    uri = "data://benchmarks/ifeval.jsonl.gz"
    return BenchmarkRecipe(name="a", uri=uri, kind="generate", task="ifeval", **{**fields, **more})


def test_a_task_whose_packages_are_missing_is_refused_when_the_recipe_is_read(monkeypatch):
    without(monkeypatch, "langdetect", "immutabledict")
    said = "a: task='ifeval' imports immutabledict, langdetect; install what has them: pip install 'lm-eval[ifeval]'"
    with pytest.raises(RecipeError, match=re.escape(said)):
        check_suite(ifeval())
    without(monkeypatch, "bert_score")
    with pytest.raises(RecipeError, match=r"imports bert_score; .*: pip install bert_score$"):  # no extra has it
        check_suite(BenchmarkRecipe(name="a", uri="x.jsonl", kind="generate", task="norsumm_nno_p0", num_fewshot=0))


def test_a_task_whose_data_of_nltk_are_missing_is_refused_when_the_recipe_is_read(monkeypatch, tmp_path):
    """lm-eval would fetch them."""
    without(monkeypatch)
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    with pytest.raises(
        RecipeError, match=r"tokenizers/punkt_tab of NLTK's data, .*: python -m nltk.downloader punkt_tab$"
    ):
        check_suite(ifeval())
    (tmp_path / "tokenizers" / "punkt_tab").mkdir(parents=True)
    check_suite(ifeval())


def test_imports_that_a_module_does_without_are_not_required(tmp_path):
    (tmp_path / "utils.py").write_text(
        "import beside, json\ntry:\n    import absent_a\nexcept ImportError:\n    absent_a = None\n"
        "def f():\n    import absent_b\n"
    )
    (tmp_path / "beside.py").write_text("from further import x\n")
    (tmp_path / "further.py").write_text(
        "try:\n    import absent_c.d\nexcept ImportError as error:\n    raise ValueError from error\n"
    )
    modules = task_checks._modules([str(tmp_path / "utils.f")])
    assert [path.stem for path in modules] == ["utils", "beside", "further"]
    found = {name for path in modules for name in task_checks._imported(ast.parse(path.read_bytes()).body)}
    assert found == {"beside", "json", "further", "absent_c"}


@pytest.mark.data
def test_ifeval_is_scored_by_its_own_verifiers():
    pytest.importorskip("langdetect")
    pytest.importorskip("immutabledict")
    if not task_checks._is_in_nltk("tokenizers/punkt_tab"):
        pytest.skip("NLTK's punkt_tab is not on this machine")
    from lm_eval.tasks.ifeval.instructions_registry import INSTRUCTION_DICT

    suite, seen = ifeval(), set[tuple[str, bool]]()
    rows = [item.row for item in read_exam(suite, {}).items]

    def follows(row: dict, said: str) -> bool:
        found = []
        for name, given in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            rule = INSTRUCTION_DICT[name](name)
            rule.build_description(**given)
            if "prompt" in (rule.get_instruction_args() or {}):
                rule.build_description(prompt=row["prompt"])
            found.append(bool(said.strip() and rule.check_following(said)))
            seen.add((name, found[-1]))
        return all(found)

    for say in (many_forms, first_instruction, lambda *_: "No."):
        expected = [follows(row, say(row, number)) for number, row in enumerate(rows)]
        assert [sample["correct"] for sample in scored(suite, say).samples] == expected
    assert seen == {(name, obeyed) for name in INSTRUCTION_DICT for obeyed in (False, True)}
    assert sys.modules["langdetect"].DetectorFactory.seed == 0  # or a language would be guessed by drawing


def many_forms(row: dict, number: int) -> str:
    """An answer in which many instructions are followed, by chance or not."""
    return f"<<Résumé>>\n* one\n* two\n[x] [y] *a* *b* *c*\n{'word ' * 40 * (number % 20)}\nP.S. {row['prompt']}"


def first_instruction(row: dict, _: int) -> str:
    """An answer made to follow the first instruction of an item, of the kinds that others do not follow by chance."""
    given = row["kwargs"][0]
    first = [f"{given.get('first_word')} it is" if n == given.get("nth_paragraph") else "x" for n in range(1, 20)]
    made = {
        "keywords:forbidden_words": "Certainly not.",
        "length_constraints:nth_paragraph_first_word": "\n\n".join(first[: given.get("num_paragraphs")]),
        "detectable_format:json_format": '{"a": 1}',
        "combination:repeat_prompt": f"{given.get('prompt_to_repeat')} So be it.",
        "change_case:english_capital": "THIS IS A WHOLE SENTENCE IN ENGLISH, AS EVERYONE CAN SEE.",
        "change_case:english_lowercase": "this is a whole sentence in english, as everyone can see.",
        "startend:quotation": '"It is so."',
        "language:response_language": SENTENCES.get(given.get("language"), ""),
    }
    return made.get(row["instruction_id_list"][0], "x")
