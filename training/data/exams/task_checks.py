"""Whether a suite's task can be scored here, asked when the recipe is read: its fields, examples, answers, and code."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from training.contract.records import RecipeError, all_of
from training.data.exams.generation import check_generation
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_files import _given, _metrics, check_own_task

NLTK_DATA = re.compile(rb"""nltk\.data\.find\(["']([\w/.-]+)["']\)""")
EVALUATORS = (b"parse_expr(", b"parse_latex(", b" eval(", b"exec(")


def check_suite(suite: BenchmarkRecipe) -> None:
    """Raise RecipeError with everything that stands against a suite's task."""
    whole = _fields(suite)
    fields = replace(suite, num_fewshot=0) if suite.is_task and _own_examples(suite, whole) else suite
    all_of(
        partial(check_own_task, fields),
        partial(check_confined, suite),
        partial(_check_installed, suite, whole),
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
    return map(Path.read_bytes, _modules([config.get("process_results"), *_metrics(config)]))


def _modules(named: Iterable[Any]) -> list[Path]:
    """Return the files of the functions of lm-eval's tasks that are named, and of all modules beside that they import.

    A function is named by the path of its module's file with its own name in place of the suffix.
    """
    texts = (one for one in named if isinstance(one, str) and os.path.isabs(one))
    found = [path for path in dict.fromkeys(Path(one.rpartition(".")[0] + ".py") for one in texts) if path.is_file()]
    for path in found:  # the list grows during the loop
        source = path.read_bytes()
        for other in sorted(path.parent.glob("*.py")):
            if other not in found and re.search(rb"import.*\b%s\b|\b%s import" % ((other.stem.encode(),) * 2), source):
                found.append(other)
    return found


def _check_installed(suite: BenchmarkRecipe, whole: Mapping[str, Any]) -> None:
    """Raise RecipeError if the functions of lm-eval's task import what is not installed, or need data of NLTK's."""
    modules = _modules(_texts_in(whole))
    names = {name for path in modules for name in _imported(ast.parse(path.read_bytes()).body)}
    if lacking := sorted(name for name in names if importlib.util.find_spec(name) is None):
        raise RecipeError(
            f"{suite.name}: task={suite.task!r} imports {', '.join(lacking)}; install what has them:"
            f" pip install {_extra_with(lacking) or ' '.join(lacking)}"
        )
    wanted = {one.decode() for path in modules for one in NLTK_DATA.findall(path.read_bytes())}
    if lacking := sorted(one for one in wanted if not _is_in_nltk(one)):
        raise RecipeError(
            f"{suite.name}: task={suite.task!r} reads {', '.join(lacking)} of NLTK's data, which this machine lacks;"
            f" set NLTK_DATA, or: python -m nltk.downloader {' '.join(os.path.basename(one) for one in lacking)}"
        )


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _texts_in(one)


def _imported(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the first names of what a module imports when it is imported itself, where it does not do without."""
    for one in body:
        if isinstance(one, ast.Import):
            yield from (name.name.partition(".")[0] for name in one.names)
        if isinstance(one, ast.ImportFrom) and one.module and not one.level:
            yield one.module.partition(".")[0]
        if isinstance(one, ast.Try) and all(isinstance(handler.body[-1], ast.Raise) for handler in one.handlers):
            yield from _imported(one.body)


def _extra_with(names: Sequence[str]) -> str:
    """Return lm-eval's extra that has one of these packages, in pip's form; empty if none has."""
    needed = importlib.metadata.requires("lm_eval") or ()
    having = (one for one in needed if re.split(r"[^\w.-]", one)[0] in names)
    extras = sorted(found[1] for one in having if (found := re.search(r"extra == [\"'](.+?)[\"']", one)))
    return f"'lm-eval[{extras[0]}]'" if extras else ""


def _is_in_nltk(name: str) -> bool:
    data = importlib.import_module("nltk.data")  # of the task's packages, and none of this project's

    try:
        data.find(name)
    except LookupError:
        return False
    return True
