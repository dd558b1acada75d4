"""The interface of engines: a function that runs ranks and yields their results in the order in which they end."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from training.contract.progress import Progress
from training.contract.records import RecipeError
from training.contract.run_settings import RunSettings

MODULES = {
    "local": "training.contract.engines.local",
    "ray": "training.contract.engines.on_ray",
}  # imported only when chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Maker:
    """The functions that run ranks in a worker process.

    A worker on the same machine gets this object itself. Another machine gets `order`, plain data, from which the
    function `made_by` (`package.module:name`) makes an equal one.
    """

    made_by: str
    order: Mapping[str, Any]
    rank: Callable[[int], dict[str, Any]]  # makes a rank and its mark, and returns its small result
    begin: Callable[[], object]  # runs first in each worker
    versions: Callable[[], dict[str, str]]  # versions and digests of all that decides a rank's bytes in this process


@dataclass(frozen=True, kw_only=True, slots=True)
class Here:
    """The objects of the job's own process that an engine needs: settings, folders and progress."""

    run: RunSettings
    modules: tuple[str, ...]  # what the workers of this machine import once for all of them
    folder: Path  # of the artifact, which every worker must see
    scratch: Path  # a folder in it that is removed after the commit
    progress: Progress


class Engine(Protocol):
    """Runs each of `ranks`, and yields the rank and its result.

    If a rank fails, no further rank begins, and the rank's error is raised when the running ranks have ended, with
    the worker's traceback as a note. A rank is never run again because of an error.
    """

    def __call__(self, maker: Maker, ranks: Sequence[int], here: Here) -> Iterator[tuple[int, dict[str, Any]]]: ...


def engine_of(run: RunSettings) -> Engine:
    """Return the engine that the profile chose."""
    return importlib.import_module(MODULES[run.engine]).each_result


def check_installed(engine: str) -> None:
    """Raise RecipeError if the engine's library is missing in this process's environment."""
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise RecipeError(
            f"engine: ray needs the extra `ray`, which {sys.executable} does not have; `pip install 'pedigree[ray]'`"
            " installs it, and `engine: local` in the profile does without"
        )
