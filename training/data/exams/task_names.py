"""The names of lm-eval's tasks, read from its files when a recipe is read: importing lm-eval takes many seconds."""

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
    files = _files()
    if not files or name in _names(file for file in files if name in (file.stem, file.parent.name)):
        return
    names = _names(files)
    if name not in names:
        near = get_close_matches(name, names, n=3)
        raise RecipeError(
            f"{where}: task={name!r}: lm-eval has no task of that name (a group or a tag is none)"
            + (f"; near it are {', '.join(near)}" if near else "")
        )


@cache
def _files() -> tuple[Path, ...]:
    found = importlib.util.find_spec("lm_eval")
    if found is None or found.origin is None:
        return ()
    folders = os.walk(Path(found.origin).parent / "tasks")  # a fifth of the time that rglob takes for 14,000 files
    return tuple(Path(folder, name) for folder, _, names in folders for name in names if name.endswith(".yaml"))


def _names(files: Iterable[Path]) -> set[str]:
    return {match.decode() for file in files for match in NAMED.findall(file.read_bytes())}
