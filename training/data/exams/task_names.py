"""The names of lm-eval's tasks, read from lm-eval's files because importing lm-eval takes many seconds."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from training.contract.records import RecipeError

GROUP = re.compile(rb"^[\"']?group[\"']?: *[\"']?([^\s\"'#\[]+)[\"']? *(?:#.*)?$", re.MULTILINE)
TAGS = re.compile(rb"^[\"']?tag[\"']?:((?: *[^\n]*)(?:\n *- *[^\n]+)*)", re.MULTILINE)
NAMED = re.compile(rb"^[\"']?task[\"']?: *[\"']?([^\s\"'#\[]+)[\"']? *(?:#.*)?$", re.MULTILINE)


def check_task(name: str, where: str) -> None:
    """Raise RecipeError if lm-eval has no task and no group of that name.

    `where` is the suite's name. On a node without lm-eval nothing is known, and nothing is refused.
    """
    if _files() and file_of(name) is None and group_file(name) is None:
        near = get_close_matches(name, [*_all_names(), *_groups()[0]], n=3)
        raise RecipeError(
            f"{where}: task={name!r}: lm-eval has no task of that name (a tag is none)"
            + (f"; near it are {', '.join(near)}" if near else "")
        )


@cache
def file_of(name: str) -> str | None:
    """Return the path of lm-eval's file that declares a task; None if there is none, or no lm-eval.

    Not all files have to be opened if the file or its folder has the task's name, or some successive words of it:
    `strategyqa.yaml` declares `bigbench_strategyqa_multiple_choice`. Names with the most words are tried first.
    """
    words = name.split("_")
    runs = ((start, start + number) for number in range(len(words), 0, -1) for start in range(len(words) - number + 1))
    near = (path for start, end in runs for path in _files().get("_".join(words[start:end]), ()))
    return next((path for path in near if name in _names([path])), None) or _all_names().get(name)


def group_file(name: str) -> str | None:
    """Return the path of lm-eval's file that declares a group; None if there is none, or no lm-eval."""
    return _groups()[0].get(name)


def tagged(tag: str) -> tuple[str, ...]:
    """Return the names of lm-eval's tasks with a tag, in the order of their files."""
    return tuple(sorted(_groups()[1].get(tag, ()), key=lambda name: file_of(name) or ""))


@cache
def _groups() -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the files of lm-eval's groups, and the tasks of its tags, which means opening each task file once."""
    groups, tags = dict[str, str](), dict[str, list[str]]()
    for path in sorted({one for paths in _files().values() for one in paths}):
        source = Path(path).read_bytes()
        groups |= {found.decode(): path for found in GROUP.findall(source)}
        for listed in TAGS.findall(source):
            for tag in re.findall(rb"[\w.-]*\w", listed):
                tags.setdefault(tag.decode(), []).extend(name.decode() for name in NAMED.findall(source))
    return groups, tags


@cache
def _all_names() -> dict[str, str]:
    """Return the names of all lm-eval tasks with their files, which means opening each of lm-eval's task files once."""
    return {name: path for path in {one for paths in _files().values() for one in paths} for name in _names([path])}


@cache
def _files() -> dict[str, list[str]]:
    """Return the paths of lm-eval's task files, by file name without suffix and by folder name.

    They are kept as text because there are 14,000.
    """
    found = importlib.util.find_spec("lm_eval")
    if found is None or found.origin is None:
        return {}
    files: dict[str, list[str]] = {}
    for folder, _, names in os.walk(Path(found.origin).parent / "tasks"):  # a fifth of the time that rglob takes
        for name in (name for name in names if name.endswith(".yaml")):
            for key in {name.removesuffix(".yaml"), os.path.basename(folder)}:
                files.setdefault(key, []).append(os.path.join(folder, name))
    return files


def _names(files: Iterable[str]) -> set[str]:
    return {match.decode() for file in files for match in NAMED.findall(Path(file).read_bytes())}
