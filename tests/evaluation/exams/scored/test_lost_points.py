"""Why written answers scored 0: what is kept of each item, what is counted, and that an answer chooses neither."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from evaluation.exams import tasks
from evaluation.report.run_page import zeros
from tests.evaluation.exams.test_code_suites import human_eval, needs_sandbox, scored, written
from tests.evaluation.exams.test_evaluated_answers import FIELDS, METRICS, suite
from tests.training.contract.sandbox.test_answers import DOCUMENTS, HARM, UTILS
from training.contract.sandbox.answers import Function
from training.data.exams.settings import BenchmarkRecipe


def facts(tmp_path, kind: str = "chat", **more: object) -> BenchmarkRecipe:
    rows = [{"question": f"What is {n}?", "answer": f"word{n}", "rivals": ["other"]} for n in range(6)]
    fields = {"question_field": "question", "answer_field": "answer"} | more
    return BenchmarkRecipe(name="facts", uri=written(tmp_path / "facts.jsonl", rows), kind=kind, **fields)


def test_a_written_answer_that_scored_0_says_why(tmp_path):
    said = ["word0", "", "<think>word2", "word3 or other", "nothing", "wrong answer\x1b[2J"]
    result = scored(facts(tmp_path), lambda _, number: said[number])
    kinds = [[why["kind"] for why in sample.get("why", ())] for sample in result.samples]
    assert kinds == [
        [],
        ["empty answer"],
        ["thought without an end"],
        ["right value among others"],
        ["wrong answer"],
        ["wrong answer"],
    ]
    expected = {"wrong answer": 2, "empty answer": 1, "right value among others": 1, "thought without an end": 1}
    assert result.as_json()["scored_0"] == expected
    assert list(result.as_json()["scored_0"]) == list(expected)  # the most frequent first
    assert "scored_0" not in scored(facts(tmp_path), lambda row, _: row["answer"]).as_json()


def test_an_answer_in_which_the_filter_finds_nothing_says_so(tmp_path):
    rows = [{"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"} for n in range(4)]
    gsm8k = {"task": "gsm8k", "num_fewshot": 0, "uri": written(tmp_path / "sums.jsonl", rows)}
    said = ["#### 0", "it is 2", "#### 5", "[invalid]"]
    result = scored(BenchmarkRecipe(name="sums", kind="generate", **gsm8k), lambda _, number: said[number])
    why = [sample.get("why") for sample in result.samples]
    nothing = {"kind": "refused by filter", "said": "the filter strict-match finds nothing in it"}
    assert why[:3] == [None, [nothing], [{"kind": "wrong answer"}]]


@needs_sandbox
def test_a_program_that_failed_says_what_happened_and_at_which_line(tmp_path):
    codes = [
        "def f(x): return 2 * x",
        "",
        "def f(x):\n    y = 1\n    return y / 0",
        "def f(x): return x",
        "def f(x): raise AssertionError('passed \x1b[2J' + 'x' * 999)",
        "import os\ndef f(x): os._exit(0)",
    ]
    test = "def check(f):\n    assert f({0}) == 2 * {0}\n"
    rows = [
        {"prompt": f"# Double {n}.\n", "test": test.format(n), "entry_point": "f", "canonical_solution": codes[0]}
        for n in range(1, 7)
    ]
    benchmark = human_eval(uri=written(tmp_path / "rows.jsonl", rows), id_field="")
    result = scored(benchmark, lambda _, number: codes[number])
    why = [sample.get("why", [{}])[0] for sample in result.samples]
    assert [one.get("kind") for one in why] == [
        *(None, "empty answer", "exception ZeroDivisionError", "wrong result", "exception AssertionError"),
        "no answer",
    ]
    assert why[2]["said"].endswith("(line 4 of the program)")
    assert why[3]["said"] == "AssertionError (line 2 of the test: assert f(4) == 2 * 4)"
    assert why[4]["said"].isprintable() and len(why[4]["said"]) < 300  # what the program says, escaped and cut
    (row,) = [one for one in zeros({"code": {"base": result.as_json()}}) if one["kind"] == "wrong result"]
    assert row == {"suite": "code", "kind": "wrong result", "answers": {"base": 1}}
    json.dumps([result.samples, result.how])  # as they are written


@needs_sandbox
def test_an_evaluated_answer_that_scored_0_says_why(tmp_path, monkeypatch):
    (tmp_path / "utils.py").write_text(UTILS)
    files = {"lm_eval/tasks/own/utils.py": str(tmp_path / "utils.py")}
    function = Function(module="lm_eval.tasks.own.utils", name="process_results", files=files)
    monkeypatch.setattr(tasks, "confined_function", lambda _: function)
    benchmark = suite(tmp_path, DOCUMENTS, answer_field="answer", lm_eval=FIELDS | METRICS)
    answers = ["0", "", "7", HARM.format(tmp_path / "pwned"), "1/0"]
    result = scored(benchmark, lambda _, number: answers[number])
    kinds = [sample["why"][0]["kind"] if "why" in sample else None for sample in result.samples]
    assert kinds[:3] == [None, "empty answer", "wrong answer"] and None not in kinds[3:]
    assert not {"", "right"} & set(kinds[3:])
