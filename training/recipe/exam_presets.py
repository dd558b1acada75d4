"""`evaluation.preset`: named lists of exam suites. A recipe gets those whose rows and packages are at hand.

Each suite is lm-eval's own task on rows of the folder PEDIGREE_DATA. A suite whose rows, packages or sandbox are not at
hand is left out, and `left_out` says why. Plain data, so that reading a recipe needs no lm-eval.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from training.contract.errors import DataError
from training.contract.records import RecipeError, read_record
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_checks import check_suite, runs_programs

CHOICE = {"kind": "multiple_choice", "question_field": "query"}
TEXT = {"kind": "generate", "question_field": "context", "answer_field": "continuation"}
QUERY = {"doc_to_text": "{{query}}\nAnswer:", "doc_to_target": "gold", "doc_to_choice": "choices"}
MMLU = "The following are multiple choice questions (with answers) about {{subject.replace('_', ' ')}}.\n\n"

# The fields of each suite. Where `task` is not given it is the suite's name, and the rows are `benchmarks/ROWS`.
SUITES: dict[str, dict[str, Any]] = {
    "arc_easy": {"rows": "arc_easy", **CHOICE, "lm_eval": QUERY},
    "arc_challenge": {"rows": "arc_challenge", **CHOICE, "lm_eval": QUERY},
    "hellaswag": {"rows": "hellaswag_val", **CHOICE, "lm_eval": {"process_docs": None, "doc_to_target": "gold"}},
    "piqa": {"rows": "piqa", **CHOICE, "lm_eval": {**QUERY, "doc_to_text": "{{query}}Answer:"}},
    "boolq": {
        "rows": "boolq",
        **CHOICE,
        "lm_eval": {"doc_to_text": "{{query.removeprefix('Passage: ')}}\nAnswer:", "doc_to_target": "gold"},
    },
    "winogrande": {
        "rows": "winogrande",
        "kind": "multiple_choice",
        "question_field": "continuation",
        "choices_field": "context_options",
        "choices_first": True,
        "lm_eval": {"doc_to_text": "gold", "doc_to_target": "continuation", "doc_to_choice": "context_options"},
    },
    "mmlu": {
        "rows": "mmlu_test",
        "kind": "multiple_choice",
        "gold_field": "answer",
        "task": "mmlu_abstract_algebra",  # the tasks of the 57 subjects differ only in the description
        "lm_eval": {"description": MMLU},
    },
    "truthfulqa_mc1": {
        "rows": "truthfulqa",
        "kind": "generate",
        "question_field": "Question",
        "answer_field": "Best Answer",
        "lm_eval": {"doc_to_choice": "{{[best_answer] + incorrect_answers.split('; ')}}"},
    },
    "lambada_openai": {
        "rows": "lambada_openai",
        **TEXT,
        "lm_eval": {"doc_to_text": "context", "doc_to_target": "{{' ' + continuation}}"},
        "metric": "acc",
    },
    "triviaqa": {
        "rows": "triviaqa_sm_sub",
        **TEXT,
        "answer_field": "aliases",
        "lm_eval": {
            "doc_to_text": "{{context.removesuffix('\nAnswer:')}}?\nAnswer:",
            "doc_to_target": "{{aliases}}",
        },
    },
    "gsm8k_cot": {"rows": "gsm8k_test", "kind": "generate"},
    "bbh": {
        "rows": "bbh",
        "kind": "generate",
        "question_field": "input",
        "answer_field": "target",
        "task": "bbh_cot_fewshot",  # a group of a task for each subject, with examples of its own
    },
    "ifeval": {
        "rows": "ifeval",
        "kind": "generate",
        "question_field": "prompt",
        "answer_field": "instruction_id_list",
        "id_field": "key",
    },
    "humaneval": {
        "rows": "human_eval",
        "kind": "generate",
        "question_field": "prompt",
        "answer_field": "canonical_solution",
        "id_field": "task_id",
    },
    "mbpp": {
        "rows": "mbpp",
        "kind": "generate",
        "question_field": "text",
        "answer_field": "code",
        "id_field": "task_id",
    },
}
BASE = tuple(SUITES)[:10]
PRESETS: dict[str, tuple[str, ...]] = {
    "none": (),
    "base": BASE,
    "chat": ("mmlu", "truthfulqa_mc1", "triviaqa", "gsm8k_cot", "ifeval"),
    "code": ("humaneval", "mbpp"),
    "full": tuple(SUITES),
}


def suite_fields(name: str) -> dict[str, Any]:
    """Return the fields of a suite of the presets, as a recipe would write them."""
    fields = {key: value for key, value in SUITES[name].items() if key != "rows"}
    return {"name": name, "uri": f"data://benchmarks/{SUITES[name]['rows']}.jsonl.gz", "task": name, **fields}


def suites_at_hand(preset: str) -> list[dict[str, Any]]:
    """Return the fields of the suites of a preset that can be scored here.

    Raise RecipeError, with the reason for each suite, if there is none.
    """
    reasons = left_out(preset)
    if reasons and len(reasons) == len(PRESETS[preset]):
        raise RecipeError(
            f"evaluation.preset: {preset}: no suite can be scored here: "
            + "; ".join(f"{name}: {why}" for name, why in reasons.items())
        )
    return [suite_fields(name) for name in PRESETS[preset] if name not in reasons]


def left_out(preset: str) -> dict[str, str]:
    """Return {suite: why} for the suites of a preset that cannot be scored here."""
    return {name: why for name in PRESETS[preset] if (why := _why_left_out(name, os.environ.get("PEDIGREE_DATA", "")))}


def told_left_out(preset: str) -> str:
    """Return a sentence about the suites of a preset that cannot be scored here; "" if all can."""
    reasons = left_out(preset)
    if not reasons:
        return ""
    return f"evaluation.preset: {preset}: not scored: " + "; ".join(f"{name}: {why}" for name, why in reasons.items())


@cache
def _why_left_out(name: str, data: str) -> str:
    """Return why a suite cannot be scored on this machine with the folder `data`; "" if it can."""
    from training.contract.sandbox.confined import why_unavailable
    from training.data.sources import is_remote, resolve  # pyarrow comes with it

    del data  # by which the answer is kept
    suite = read_record(BenchmarkRecipe, suite_fields(name), where=name)
    try:
        location = resolve(suite.uri)
        if not is_remote(location) and not os.path.isfile(location):
            return f"{suite.uri} is not there"
        check_suite(suite)
    except (DataError, RecipeError) as error:
        return str(error).removeprefix(f"{name}: ").replace("\n", "; ")
    return why_unavailable() if runs_programs(suite) else ""


def with_exam_preset(data: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe file's mapping with the suites of `evaluation.preset` that can be scored here.

    Suites that the file names itself follow; one with the name of a suite of the preset takes its place. An unknown
    preset stays for the check of the record.
    """
    evaluation = data.get("evaluation")
    name = evaluation.get("preset") if isinstance(evaluation, dict) else None
    if not isinstance(evaluation, dict) or not isinstance(name, str) or not PRESETS.get(name):
        return data
    own = evaluation.get("suites") or []
    if not isinstance(own, list):
        return data
    named = {one.get("name") for one in own if isinstance(one, Mapping)}
    some = [one for one in suites_at_hand(name) if one["name"] not in named]
    return {**data, "evaluation": {**evaluation, "suites": [*some, *own]}}
