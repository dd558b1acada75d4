"""Answers that are evaluated to be scored: in the sandbox, with the scores of the function itself, and to no harm."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from training.contract.errors import DataError
from training.contract.sandbox import answers
from training.contract.sandbox.answers import LIMITS, ConfinedScores, EvaluatedAnswer, Function, scored
from training.contract.sandbox.confined import why_unavailable

pytest.importorskip("sympy")
needs_sandbox = pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable())

# As lm-eval's tasks have it: sympy makes an expression of a text by `eval`.
UTILS = """
import datasets
import sympy
from sympy.parsing.sympy_parser import parse_expr

def process_docs(dataset: datasets.Dataset) -> datasets.Dataset:
    return dataset

def process_results(doc, results):
    try:
        same = sympy.simplify(parse_expr(results[0]) - parse_expr(doc["answer"])) == 0
    except Exception:
        same = False
    return {"exact_match": int(same)}
"""
DOCUMENTS = [
    {"problem": f"What is 6 times {n}?", "answer": right} for n, right in enumerate(("0", "6", "12", "9*2", "x"))
]
WRITES = "__import__('os').write(4, b'{}\\n')"  # to the process that waits for the scores
SAYS_ONE = '{"value": {"is": "dict", "of": [["exact_match", 1]]}}'
HARM = "__import__('os').system('touch {}')"
HOSTILE = {
    "a command": HARM.format("/tmp/pwned"),
    "a file": "__import__('pathlib').Path('/python/x').write_text('')",
    "the end": "__import__('os')._exit(0)",
    "a signal": "__import__('os').kill(__import__('os').getppid(), 9)",
    "without end": "sum(__import__('itertools').count())",
    "all memory": "[__import__('os').urandom(10**8) for _ in __import__('itertools').count()]",
    "no scores": WRITES.replace("{}", '{"value": 1}'),
    "not JSON": WRITES.replace("{}", "yes"),
    "a forged score": WRITES.replace("{}", SAYS_ONE),
    "too high a score": WRITES.replace("{}", SAYS_ONE.replace("1]", "7]")),
    "the right answer of the item": "__import__('sys')._getframe(4).f_locals['doc']['answer']",
}


@pytest.fixture
def function(tmp_path) -> Function:
    (tmp_path / "utils.py").write_text(UTILS)
    files = {"lm_eval/tasks/own/utils.py": str(tmp_path / "utils.py")}
    return Function(module="lm_eval.tasks.own.utils", name="process_results", files=files)


def scores_of(function: Function) -> ConfinedScores:
    found = ConfinedScores(function, "problem")
    found.of_task("maths", ["exact_match"], [(one, one["answer"]) for one in DOCUMENTS])
    return found


def here(function: Function):
    """The function itself, called in this process."""
    (path,) = function.files.values()
    spec = importlib.util.spec_from_file_location("own_utils", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.process_results


@needs_sandbox
def test_harmless_answers_have_the_scores_of_the_function_itself(function):
    pytest.importorskip("datasets")
    said = ["6", "2*3", "7", "", "((", "x - x + 18", "x", "12", "no", "3 + 3\n", "18"]
    pairs = [(document, [one]) for document in DOCUMENTS[1:4:2] for one in said]
    confined = scores_of(function)
    confined.ahead(pairs, lambda given: scored(function, ["exact_match"], given, at_once=1))
    own = here(function)
    assert [confined(*pair) for pair in pairs] == [own(*pair) for pair in pairs]
    assert sum(confined(*pair)["exact_match"] for pair in pairs) == 5


@needs_sandbox
def test_hostile_answers_score_nothing_and_harm_nothing(function, tmp_path):
    confined, target = scores_of(function), tmp_path / "pwned"
    said = [*HOSTILE.values(), HARM.format(target), "6"]
    limits = replace(LIMITS, cpu_seconds=2)
    confined.ahead(
        [(DOCUMENTS[1], [one]) for one in said],
        lambda given: scored(function, ["exact_match"], given, limits, at_once=1),
    )
    found = {name: confined(DOCUMENTS[1], [one])["exact_match"] for name, one in HOSTILE.items()}
    assert found == dict.fromkeys(HOSTILE, 0)
    assert confined(DOCUMENTS[1], ["6"]) == {"exact_match": 1}  # the last: what came before left nothing
    assert not target.exists() and not Path("/tmp/pwned").exists()
    whys = {name: confined.known[answers._key(DOCUMENTS[1], [one])].why for name, one in HOSTILE.items()}
    assert whys["a forged score"] == "it scores as well for other right answers"
    assert whys["without end"] == "it used its 2 s of processor time" and whys["the end"] == "it ended with code 0"
    assert whys["not JSON"] == whys["no scores"] == "it gives no scores exact_match"
    assert whys["too high a score"] == "a score is not from 0 to 1"


def test_the_command_of_a_hostile_answer_is_run_without_the_sandbox(function, tmp_path):
    """The other side of the test above: what it says of harm would be true of any answer otherwise."""
    pytest.importorskip("datasets")
    assert here(function)(DOCUMENTS[1], [HARM.format(tmp_path / "pwned")]) == {"exact_match": 0}
    assert (tmp_path / "pwned").exists()


@needs_sandbox
def test_an_item_that_no_other_can_be_compared_with_scores_nothing(function):
    (found,) = scored(function, ["exact_match"], [EvaluatedAnswer(document=DOCUMENTS[1], results=["6"])])
    assert found.values == {"exact_match": 0} and found.why == "no item has another right answer to compare with"
    with pytest.raises(DataError, match=r"^maths: .* give the suite at least two items with different answers"):
        ConfinedScores(function, "problem").of_task("maths", ["exact_match"], [(one, "6") for one in DOCUMENTS])


@needs_sandbox
def test_a_module_that_cannot_be_imported_in_the_sandbox_is_named(function):
    other = replace(function, module="lm_eval.tasks.other.utils")
    with pytest.raises(DataError, match="no program can be started in the sandbox: ModuleNotFoundError: No module"):
        scored(other, ["exact_match"], [EvaluatedAnswer(document={}, results=[""])])


def test_without_a_sandbox_nothing_is_scored(function, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    why_unavailable.cache_clear()
    try:
        with pytest.raises(DataError, match=r"evaluates answers runs code .* install Debian's package bubblewrap"):
            scored(function, ["exact_match"], [EvaluatedAnswer(document={}, results=[""])])
    finally:
        why_unavailable.cache_clear()
