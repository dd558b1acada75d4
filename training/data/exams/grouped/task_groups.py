"""Groups of lm-eval: a suite whose rows are of several tasks, each of which a column of the rows names.

lm-eval takes a group as its tasks, asked one by one, with the mean over all their items as its score (`weight_by_size`,
its default). So is it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile
from typing import Any

from training.contract.records import RecipeError
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_files import _module
from training.data.exams.task_names import file_of, group_file, tagged


@cache
def members(name: str | None) -> tuple[str, ...]:
    """Return the names of the tasks of a group of lm-eval, in its order; none if it has no group of that name.

    Raise RecipeError for a group that changes fields of its tasks, or names what is no task.
    """
    if not name or file_of(name) is not None or group_file(name) is None:
        return ()
    return tuple(dict.fromkeys(_leaves(name, name)))


def _leaves(name: str, group: str) -> Iterator[str]:
    if file_of(name) is not None:
        yield name
        return
    place = group_file(name)
    listed = tagged(name) if place is None else fields_in(place).get("task")
    if not listed or isinstance(listed, str):
        raise RecipeError(f"task={group!r}: the group names {name!r}, of which lm-eval has no task")
    for one in listed:
        if not isinstance(one, str):
            raise RecipeError(f"task={group!r}: the group changes fields of its tasks; name one of its tasks")
        yield from _leaves(one, group)


def tasks_of(suite: BenchmarkRecipe) -> list[BenchmarkRecipe]:
    """Return the suite once for each task of the group that it names; otherwise as it is."""
    names = () if suite.outside_task() is not None else members(suite.task)
    return [replace(suite, task=name) for name in names] or [suite]


def owners(suite: BenchmarkRecipe, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the task of each row of a group, by the first column that names one in every row.

    It has the task's name, without what all names of the group begin with if you like, or the name of its data set
    (`dataset_name`), with `_` or blanks. Raise RecipeError if there is no such column.
    """
    labels = _labels(suite.task or "")
    for column in rows[0] if rows else ():
        found = [labels.get(_label(row.get(column)), "") for row in rows]
        if all(found):
            return found
    names = members(suite.task)
    named = sorted(label for label, name in labels.items() if name == names[0])
    raise RecipeError(
        f"{suite.name}: task={suite.task!r} is a group of {len(names)} tasks, and no column of {suite.uri}"
        f" names one in every row, such as {' or '.join(map(repr, named))}; add one, or name a single task"
    )


@cache
def _labels(group: str) -> dict[str, str]:
    """Return {what a row may say: the task that it means}, without what would mean several."""
    said: dict[str, set[str]] = {}
    words = [name.split("_") for name in members(group)]
    shared = len(list(takewhile(lambda same: len(set(same)) == 1, zip(*words, strict=False))))
    for name, own in zip(members(group), words, strict=True):
        data_set = _label(fields_in(file_of(name) or "").get("dataset_name"))
        for label in {"_".join(own[shared:]), name, data_set} - {""}:
            said.setdefault(label, set()).add(name)
    return {label: next(iter(names)) for label, names in said.items() if len(names) == 1}


def _label(value: Any) -> str:
    return value.strip().replace(" ", "_") if isinstance(value, str) else ""


def check_group(suite: BenchmarkRecipe) -> None:
    """Raise RecipeError for a group whose score is no mean over its items, or whose tasks are not of one kind."""
    names = () if suite.outside_task() is not None else members(suite.task)
    if not names:
        return
    where, listed = f"{suite.name}: task={suite.task!r}", fields_in(group_file(suite.task or "") or "")
    of = listed.get("aggregate_metric_list") or []
    if any(one.get("weight_by_size") is False for one in (of if isinstance(of, list) else [of])):
        raise RecipeError(
            f"{where}: the group's score is the mean of its tasks, not of its items, so models cannot be compared item"
            " by item; name one of its tasks"
        )
    fields = [fields_in(file_of(name) or "") | suite.lm_eval for name in names]
    for name in ("output_type", "metric_list", "class"):
        if any(_shape(one.get(name)) != _shape(fields[0].get(name)) for one in fields):
            raise RecipeError(f"{where}: the tasks of the group differ in {name}; name one of them")
    if any(one.get("unsafe_code") or one.get("class") for one in fields):
        raise RecipeError(f"{where}: the tasks of the group run code or are code; name one of them")


def python_task(name: str | None) -> dict[str, Any]:
    """Return the fields of a task of lm-eval that is a class of Python's; none of any other task."""
    fields = fields_in(file_of(name) or "") if name else {}
    return fields if "class" in fields else {}


@cache
def fields_in(place: str) -> dict[str, Any]:
    """Return the fields in a file of lm-eval's with those that it includes, functions as the names of their places."""
    loader = _module("tasks/_yaml_loader.py")
    return {} if loader is None or not place else loader.load_yaml(place, resolve_func=False)


def _shape(value: Any) -> Any:
    """Return of metrics their names alone."""
    return [one.get("metric") for one in value if isinstance(one, Mapping)] if isinstance(value, list) else value
