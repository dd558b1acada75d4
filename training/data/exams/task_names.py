"""The names of lm-eval's tasks, read from lm-eval's files because importing lm-eval takes many seconds."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from training.records import RecipeError

NAMED = re.compile(rb"^[\"']?task[\"']?: *[\"']?([^\s\"'#\[]+)[\"']? *(?:#.*)?$", re.MULTILINE)
# Tasks of lm-eval (and those whose names begin alike) that run what the model writes.
RUN_CODE = ("humaneval", "mbpp", "longproc_pseudo_to_code")


def check_task(name: str, where: str) -> None:
    """Raise RecipeError if lm-eval has no task of that name, or if the task runs code that the model writes.

    `where` is the suite's name. On a node without lm-eval nothing is known, and nothing is refused.
    """
    if name.startswith(RUN_CODE):
        raise RecipeError(
            f"{where}: task={name!r} runs code that the model writes, which nothing here confines; take another suite"
        )
    if not _files() or _is_named(name):
        return
    names = _all_names()
    if name not in names:
        near = get_close_matches(name, names, n=3)
        raise RecipeError(
            f"{where}: task={name!r}: lm-eval has no task of that name (a group or a tag is none)"
            + (f"; near it are {', '.join(near)}" if near else "")
        )


@cache
def _is_named(name: str) -> bool:
    """Whether a file whose name resembles the task's declares this task; if so, not all files have to be opened.

    The file or its folder must have the task's name, or some successive words of it: `strategyqa.yaml` declares
    `bigbench_strategyqa_multiple_choice`. Names with the most words are tried first.
    """
    words = name.split("_")
    runs = ((start, start + number) for number in range(len(words), 0, -1) for start in range(len(words) - number + 1))
    return any(name in _names(_files().get("_".join(words[start:end]), ())) for start, end in runs)


@cache
def _all_names() -> set[str]:
    """Return the names of all lm-eval tasks, which means opening each of lm-eval's task files once."""
    return _names({path for paths in _files().values() for path in paths})


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
