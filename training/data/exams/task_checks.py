"""Whether a suite's task can be scored here, asked when the recipe is read: its fields, examples, answers, and code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from training.contract.records import RecipeError, all_of
from training.data.exams.generation import check_generation
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_files import _given, _metrics, check_own_task

EVALUATORS = (b"parse_expr(", b"parse_latex(", b" eval(", b"exec(")


def check_suite(suite: BenchmarkRecipe) -> None:
    """Raise RecipeError with everything that stands against a suite's task."""
    whole = _fields(suite)
    fields = replace(suite, num_fewshot=0) if suite.is_task and _own_examples(suite, whole) else suite
    all_of(
        partial(check_own_task, fields),
        partial(check_confined, suite),
        partial(check_generation, suite.name, whole),
        partial(_check_examples, suite, whole),
    )


def check_confined(suite: BenchmarkRecipe) -> None:
    """Raise RecipeError if a suite's task would run what a model wrote in the process that scores it.

    On a machine without lm-eval nothing is known when the recipe is read, so the job that scores asks again. Programs
    are judged in the sandbox if their task scores by `code_eval`. Functions of lm-eval's tasks are known by their
    source; sympy's `parse_expr` and `parse_latex` evaluate the text as Python.
    """
    whole = _fields(suite)
    sources = list(_sources(whole))
    if whole.get("unsafe_code") and not any(b'("code_eval")' in source for source in sources):
        raise RecipeError(
            f"{suite.name}: task={suite.task!r} runs code that the model writes outside the sandbox; take another suite"
        )
    if any(evaluator in source for source in sources for evaluator in EVALUATORS):
        raise RecipeError(
            f"{suite.name}: task={suite.task!r} hands the model's answer to Python's eval, outside the sandbox; take"
            " another suite"
        )


def _fields(suite: BenchmarkRecipe) -> dict[str, Any]:
    """Return the fields of a suite's task, those of the recipe in place of its own; functions are names of places."""
    return ((_given(suite)[0] or {}) if suite.is_task else {}) | suite.lm_eval


def _own_examples(suite: BenchmarkRecipe, whole: Mapping[str, Any]) -> Any:
    """Return the examples that a task has itself, or what names them; None if it has none or the recipe names rows."""
    own = whole.get("fewshot_config")
    return own.get("samples") if isinstance(own, dict) and not suite.fewshot_uri else None


def _check_examples(suite: BenchmarkRecipe, whole: Mapping[str, Any]) -> None:
    own, samples = whole.get("fewshot_config"), _own_examples(suite, whole)
    if own is not None and not isinstance(own, dict):
        raise RecipeError(f"{suite.name}: fewshot_config={own!r:.80}; expected a mapping")
    shots = (whole.get("num_fewshot") if suite.num_fewshot is None else suite.num_fewshot) or 0
    if isinstance(samples, list) and shots > len(samples):
        raise RecipeError(f"{suite.name}: num_fewshot={shots}; the task has {len(samples)} examples of its own")


def _sources(config: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the source of each module of lm-eval whose function sees answers, and of those beside it that it names."""
    for named in [config.get("process_results"), *_metrics(config)]:
        place = Path(named.rpartition(".")[0] + ".py") if isinstance(named, str) and os.path.isabs(named) else None
        if place is not None and place.is_file():
            source = place.read_bytes()
            yield source
            for other in sorted(place.parent.glob("*.py")):
                if other != place and re.search(rb"import.*\b%s\b|\b%s import" % ((other.stem.encode(),) * 2), source):
                    yield other.read_bytes()
