"""A suite's own task in lm-eval's form, a YAML file or fields of the recipe, checked when the recipe is read.

Importing lm-eval takes many seconds. So the names of a task's fields are read from its source. On a node without
lm-eval only the file itself is checked.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import Any

from training.data.exams.settings import DECIDED_HERE, BenchmarkRecipe
from training.job import DataError
from training.plain_data import read_yaml
from training.records import RecipeError, did_you_mean

SCORED = ("multiple_choice", "loglikelihood", "generate_until")  # output types that give an item 0 or 1
NEEDED = ("doc_to_text", "doc_to_target")


def check_own_task(suite: BenchmarkRecipe) -> None:
    """Raise one RecipeError with everything that is wrong with a suite's `task_file` and its `lm_eval`."""
    config, problems = _file_config(suite.task_file) if suite.task_file else ({}, [])
    if config is not None:
        problems += [f"{suite.task_file}: {problem}" for problem in _unknown(config)] if suite.task_file else []
        if (part := suite.outside_task()) is not None:
            config = suite.outside_fields()
            where = f"task {suite.task} ({part.place})"
            problems += [f"{where}: {problem}" for problem in _unknown(config)]
            given = sorted(DECIDED_HERE & config.keys() - {"num_fewshot"})
            problems += [f"{where}: {name} is decided by the suite; leave it out" for name in given]
        problems += [f"lm_eval.{problem}" for problem in _unknown(suite.lm_eval)]
        whole = config | suite.lm_eval
        problems += _unfit_output(whole)
        if (not suite.task or part is not None) and not problems and suite.is_task:
            choice = ["doc_to_choice"] if whole.get("output_type") == "multiple_choice" else []
            missing = [name for name in (*NEEDED, *choice) if name not in whole]
            problems += [f"the task has no {name}" for name in missing]
        shots = whole.get("num_fewshot") if suite.num_fewshot is None else suite.num_fewshot
        if shots and suite.is_task and not suite.fewshot_uri:
            problems.append(
                f"the task has {shots} examples in its prompt; name rows in fewshot_uri, or set num_fewshot to 0"
            )
    if problems:
        raise RecipeError(*(f"{suite.name}: {problem}" for problem in problems))


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


def _source(place: str) -> Path | None:
    found = importlib.util.find_spec("lm_eval")
    return Path(found.origin).parent / place if found is not None and found.origin is not None else None
