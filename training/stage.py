"""What a stage declares of itself and of the assets that it makes: the one place where either is described.

A folder that owns a stage has a `stage.py` with its `ASSETS`. From them follow the table of stages that a job is run by
(training/stages.py), the chain with its partitions, fingerprints and dependencies (assets/chain.py), and Dagster's
assets (assets/declare.py). Standard library only; a stage's module is imported only in the process that runs it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from training.closure import place_of
from training.generated_sources import SOURCES

if TYPE_CHECKING:
    from training.recipe import Recipe

Scope = Literal["snapshot", "recipe", "rung", "ladder", "doremi", "long_context", "synthesis"]
Which = Literal["same", "earlier", "every", "quality", "tokenizer"]
Settings = Callable[["Recipe", str], dict[str, Any]]
"""What a partition of an asset reads of its recipe: sections and other plain data by name. The second argument is the
partition's snapshot or rung, "" where it is of the whole recipe."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One kind of work. `module` has `run`, or `num_ranks`, `run_rank` and `finish`."""

    name: str
    version: str  # written by hand; raised when the output changes
    module: str
    libraries: tuple[str, ...] = ()  # whose versions decide the output
    data_files: tuple[str, ...] = ()  # packaged files that decide the output: patterns from the package's folder
    kinds: tuple[str, ...] = ()  # badges in the UI: libraries and formats of what it makes
    gates: tuple[str, ...] = ()
    distributed: bool = False  # the processes of torchrun make it together; without, the first one makes it alone
    in_ranks: bool = False  # the module has `num_ranks`: the work can be spread over the tasks of an array
    reads: tuple[str, ...] = ()  # assets that hold the records that come in: each kept so many (training/accounts.py)
    reads_in_ranks: tuple[str, ...] = ()  # assets whose every kept record is a rank: `in` counts what lies inside
    reads_last: bool = False  # of inputs of several snapshots only its own, the last, comes in
    by_a_model: bool = False  # torch decides its bytes: the record names the numerics class (training/numerics.py)
    locations: tuple[tuple[str, ...], ...] = ()  # settings that say only where bytes are found: in no fingerprint
    context: tuple[str, ...] = ()  # settings that are recorded and make nothing outdated

    @property
    def package(self) -> str:
        """The package that runs it: `python -m` goes before its name and the job file after it."""
        return self.module.partition(".")[0]

    def library_versions(self) -> dict[str, str]:
        """Versions of the libraries, and checksums of the data files, that decide the output.

        A library that is not installed is "absent".
        """
        folder = place_of(self.package) if self.data_files else Path()
        files = sorted(path for pattern in self.data_files for path in folder.glob(pattern))
        return {name: _version(name) for name in self.libraries} | {path.name: _checksum(path) for path in files}


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """An upstream asset, and which of its partitions are read.

    `same`: the same partition, or the recipe's. `earlier`: this snapshot and those before it. `every`: all snapshots
    (or rungs) of the recipe. `quality`, `tokenizer`: the snapshots that the recipe names for them. `when` says which
    recipes read it; None: all. An asset that a recipe does not have is no input of its others.
    """

    asset: str
    which: Which = "same"
    when: Callable[[Recipe], bool] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Asset:
    """One asset of the chain: the stage that makes it, what it reads of the recipe, and what it is made from.

    `description` is what people read beside it in the UI. `scope` says what its partitions are: the snapshots of each
    recipe, the recipes, the rungs of each recipe's ladder, or the recipes that ask for an optional part (a ladder,
    weights by DoReMi, long context, synthetic text).
    """

    name: str
    stage: Stage
    description: str
    group: str
    scope: Scope
    settings: Settings
    inputs: tuple[Input, ...] = ()
    shows_recipe: bool = False  # to people, and opens nothing that it names: what is made keeps its name there


def modules_of(stage: Stage, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The modules whose code a job of the stage runs: its own, and those of the sources that its settings name."""
    return (stage.module, *(SOURCES[name].module for name in sorted(SOURCES.keys() & settings.keys())))


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _version(distribution: str) -> str:
    """The version that is installed now. Only the line that says it is read: `importlib.metadata.version` parses the
    whole page that a package says of itself, 2 ms, and one comparison of a recipe asks 60 times."""
    try:
        installed = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
    said = next((line for line in (installed.read_text("METADATA") or "").splitlines() if line[:8] == "Version:"), None)
    return said[8:].strip() if said else installed.version
