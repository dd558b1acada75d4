"""A suite's task in lm-eval's form (by name, a YAML file or fields of the recipe), checked when the recipe is read.

Importing lm-eval takes many seconds. So its loader of its own task files is imported as the one module that it is, and
the names of a task's fields are read from its source. On a node without lm-eval only the file itself is checked.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from training.contract.job import DataError
from training.contract.records import RecipeError, did_you_mean
from training.contract.user_input.plain_data import read_yaml
from training.data.exams.settings import DECIDED_HERE, BenchmarkRecipe
from training.data.exams.task_names import file_of

SCORED = ("multiple_choice", "loglikelihood", "generate_until")  # output types that give an item 0 or 1
NEEDED = ("doc_to_text", "doc_to_target")
FIRST_METRICS = {"multiple_choice": ["acc"], "loglikelihood": ["perplexity"]}  # of a task that lists no metric


def check_own_task(suite: BenchmarkRecipe) -> None:
    """Raise one RecipeError with everything that is wrong with a suite's task and its `lm_eval`."""
    config, problems = _given(suite)
    problems += [f"lm_eval.{problem}" for problem in _unknown(suite.lm_eval)]
    if config is not None and suite.is_task:
        problems += _unfit(suite, config | suite.lm_eval, is_whole=not problems)
    if problems:
        raise RecipeError(*(f"{suite.name}: {problem}" for problem in problems))


def asked_and_scored(suite: BenchmarkRecipe) -> tuple[str | None, str | None]:
    """Return how lm-eval asks the items of a suite and which metric is its score, in lm-eval's words.

    None if this machine cannot know it now.
    """
    if not suite.is_task:
        return ("multiple_choice", "acc") if suite.kind == "multiple_choice" else (SCORED[-1], None)
    config = _given(suite)[0]
    if config is None:
        return None, None
    config |= suite.lm_eval
    asked = config.get("output_type", SCORED[-1])
    listed = _metrics(config) or FIRST_METRICS.get(str(asked), ())
    metric = (suite.metric or "").partition(",")[0] or next(iter(listed), None)
    return asked, metric if isinstance(metric, str) else None


def check_row(suite: BenchmarkRecipe, row: Mapping[str, Any]) -> None:
    """Raise RecipeError if a row of a suite's file lacks a column that the templates of its task read.

    A task with functions is not tried: they make columns of their own.
    """
    config = ((_given(suite)[0] or {}) if suite.is_task else {}) | suite.lm_eval
    if "process_docs" in config:
        return
    document = {name.lower().replace(" ", "_"): value for name, value in row.items()} | dict(row)
    for name in (*NEEDED, "doc_to_choice"):
        text = config.get(name)
        if isinstance(text, str) and text not in document and (problem := _unrendered(text, document)):
            columns = ", ".join(map(str, row))
            raise RecipeError(f"{suite.name}: {name}={text!r}: {problem}; the columns of {suite.uri} are {columns}")


def _unrendered(text: str, document: Mapping[str, Any]) -> str:
    """Return why a template of jinja2's cannot be rendered with a document; empty if it can."""
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(undefined=StrictUndefined)
    environment.filters["regex_replace"] = lambda value, pattern, new, count=0: re.sub(pattern, new, value, count=count)
    try:
        environment.from_string(text).render(**document)
    except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _given(suite: BenchmarkRecipe) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the fields of the task that a suite names, and the problems with them.

    The fields are None if they cannot be read on this machine now.
    """
    if suite.task_file:
        config, problems = _file_config(suite.task_file)
        return config, problems + [f"{suite.task_file}: {problem}" for problem in _unknown(config or {})]
    if (part := suite.outside_task()) is not None:
        config, where = suite.outside_fields(), f"task {suite.task} ({part.place})"
        given = sorted(DECIDED_HERE & config.keys() - {"num_fewshot"})
        problems = [f"{where}: {problem}" for problem in _unknown(config)]
        return config, problems + [f"{where}: {name} is decided by the suite; leave it out" for name in given]
    if suite.task:
        return _named_config(suite.task)
    return {}, []


def _named_config(name: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the fields of lm-eval's own task of that name, with those that it includes, and the problems with it."""
    place, loader = file_of(name), _module("tasks/_yaml_loader.py")
    if place is None or loader is None:
        return None, []
    config = loader.load_yaml(place, resolve_func=False)
    if "class" in config:
        return None, [f"task={name!r} is code of lm-eval's that reads its own data; it cannot be given rows"]
    return config, []


def _unfit(suite: BenchmarkRecipe, whole: dict[str, Any], *, is_whole: bool) -> list[str]:
    """Return why the fields of a task do not ask and score the items of a suite.

    `is_whole` says that no field has a problem, so that one that is missing is not there under another name.
    """
    problems = _unfit_output(whole)
    if is_whole and not problems:
        choice = ["doc_to_choice"] if whole.get("output_type") == "multiple_choice" else []
        problems += [f"the task has no {name}" for name in (*NEEDED, *choice) if name not in whole]
    shots = whole.get("num_fewshot") if suite.num_fewshot is None else suite.num_fewshot
    if shots and not suite.fewshot_uri:
        problems.append(
            f"the task has {shots} examples in its prompt; name rows in fewshot_uri, or set num_fewshot to 0"
        )
    metrics = [one for one in _metrics(whole) if isinstance(one, str)]
    wanted = (suite.metric or "").partition(",")[0]
    if wanted and metrics and "process_results" not in whole and wanted not in metrics:
        problems.append(f"metric={suite.metric!r}; the task has {', '.join(metrics)}")
    return problems


def _metrics(config: Mapping[str, Any]) -> list[Any]:
    """Return the metrics that a task lists, names or functions; none if it lists them in another form."""
    listed = config.get("metric_list")
    return [one.get("metric") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _file_config(uri: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the fields in a task file and the problems with it.

    The fields are None for a file that cannot be read on this machine now.
    """
    from training.data.sources import is_remote, resolve  # pyarrow comes with it

    try:
        location = resolve(uri)
    except DataError:  # told by `status`, which knows the data that are missing
        return None, []
    if is_remote(location):
        return None, []
    if not os.path.isfile(location):
        return None, [f"task_file={uri!r}: {'a folder, no file' if os.path.isdir(location) else 'no such file'}"]
    try:
        config = read_yaml(Path(location))
    except RecipeError as error:
        return None, [f"{uri}: not plain YAML of one task (functions are not called): {error}"]
    return {name: value for name, value in config.items() if name not in DECIDED_HERE - {"num_fewshot"}}, []


def _unknown(config: dict[str, Any]) -> list[str]:
    known = _fields() if config else frozenset()  # most suites have none, and recipes are read often
    return [
        f"{name}: lm-eval's tasks have no such field;{did_you_mean(str(name), known)}".rstrip(";")
        for name in config
        if known and name not in known
    ]


def _unfit_output(config: dict[str, Any]) -> list[str]:
    output = config.get("output_type", SCORED[-1])
    if output in SCORED:
        return []
    return [f"output_type={output!r}: expected {', '.join(SCORED)}, by which an item is right or wrong"]


@cache
def _fields() -> frozenset[str]:
    """Return the names of the fields of lm-eval's TaskConfig; none if lm-eval is not installed."""
    source = _source("config/task.py")
    if source is None:
        return frozenset()
    classes = [node for node in ast.parse(source.read_text("utf-8")).body if isinstance(node, ast.ClassDef)]
    (config,) = (node for node in classes if node.name == "TaskConfig")
    return frozenset(
        node.target.id for node in config.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    )


@cache
def _module(place: str) -> ModuleType | None:
    """Return one module of lm-eval, loaded without the package around it; None if lm-eval is not installed."""
    source = _source(place)
    spec = importlib.util.spec_from_file_location("lm_eval_task_files", source) if source else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _source(place: str) -> Path | None:
    found = importlib.util.find_spec("lm_eval")
    return Path(found.origin).parent / place if found is not None and found.origin is not None else None
